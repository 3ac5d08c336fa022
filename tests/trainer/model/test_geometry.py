"""Distances in float32 far from the origin, and products that are exact when asked to be."""

from __future__ import annotations

import pytest
import torch

from evofeed.trainer.losses.fape import compute_fape
from evofeed.trainer.model.primitives import exact_products
from evofeed.trainer.model.rigid import Rigid, from_tensor_7


def test_fape_is_the_same_in_float32_wherever_the_protein_is() -> None:
    generator = torch.Generator().manual_seed(1)

    def frames(count: int) -> Rigid:
        tensor = 10 * torch.randn(2, count, 7, generator=generator).double()
        tensor[..., :4] /= tensor[..., :4].norm(dim=-1, keepdim=True)
        return from_tensor_7(tensor)

    pred, target = frames(6), frames(6)
    points, goals = (20 * torch.randn(2, 9, 3, generator=generator).double() for _ in range(2))
    ones = torch.ones(2, 6).double(), torch.ones(2, 9).double()

    def fape(shift: float, dtype: torch.dtype) -> torch.Tensor:
        sides = [
            (Rigid(f.rots.to(dtype), (f.trans + shift).to(dtype)), (x + shift).to(dtype))
            for f, x in ((pred, points), (target, goals))
        ]
        (a, x), (b, y) = sides
        frames_mask, points_mask = (mask.to(dtype) for mask in ones)
        return compute_fape(
            a, b, frames_mask, x, y, points_mask, length_scale=10.0, clamp_distance=10.0
        )

    exact = fape(0.0, torch.float64)
    assert torch.allclose(fape(500.0, torch.float32).double(), exact, rtol=1e-4)


@pytest.mark.parametrize("by_backend", [False, True])
def test_exact_products_are_so_however_tf32_was_asked_for_and_leave_it_as_it_was(
    by_backend: bool,
) -> None:
    matmul = torch.backends.cuda.matmul
    if by_backend:
        matmul.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision("high")
    try:
        with exact_products():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        if by_backend:
            matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")

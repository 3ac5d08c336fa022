"""Rigid transforms and bond tables agree with themselves and with the ideal residues."""

from __future__ import annotations

import pytest
import torch
from tests.trainer.synthetic_batch import synthetic_batch

from evofeed.trainer.losses.fape import compute_fape
from evofeed.trainer.losses.violation import find_structural_violations, violation_loss
from evofeed.trainer.model.config import LossConfig
from evofeed.trainer.model.primitives import exact_products
from evofeed.trainer.model.rigid import (
    Rigid,
    from_tensor_7,
)


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


def test_ideal_residues_violate_nothing_inside_and_broken_ones_do() -> None:
    batch = synthetic_batch(num_res=20, num_seq=1, num_extra_seq=1, num_templates=0)
    # Random chi angles may bring a residue's own atoms together: judge the backbone only.
    batch["atom14_atom_exists"][..., 5:] = 0
    atom14 = batch["atom14_gt_positions"]
    ideal = find_structural_violations(batch, atom14, LossConfig())
    assert not ideal["within_residues"]["per_atom_violations"].any()
    broken = atom14.clone()
    broken[:, 7, 1] += 3.0
    found = find_structural_violations(batch, broken, LossConfig())
    assert found["within_residues"]["per_atom_violations"][0, 7].any()
    assert found["total_per_residue_violations_mask"][0, 7] == 1
    losses = [violation_loss(v, batch["atom14_atom_exists"]) for v in (ideal, found)]
    assert losses[1] > losses[0]

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evofeed.kernels import frame_error
from evofeed.kernels.structure.frame_error import op, reference

pytestmark = pytest.mark.gpu


def _rotations(*shape: int) -> Tensor:
    return torch.linalg.qr(torch.randn(*shape, 3, 3))[0]


def _inputs(leading: tuple[int, ...], own: tuple[int, ...], F: int, P: int) -> list[Tensor]:
    return [
        _rotations(*leading, F), 4 * torch.randn(*leading, F, 3), 4 * torch.randn(*leading, P, 3),
        _rotations(*own, F), 4 * torch.randn(*own, F, 3), 4 * torch.randn(*own, P, 3),
        (torch.rand(*own, F) > 0.2).float(), (torch.rand(*own, P) > 0.2).float(), torch.rand(*own),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("leading", "own", "F", "P"),
    [((2,), (2,), 17, 70), ((3, 2), (2,), 16, 20), ((1,), (1,), 33, 5)],
)
@pytest.mark.parametrize("most", [6.0, math.inf])
def test_sums_and_gradients_are_those_of_all_pairs(
    leading: tuple[int, ...], own: tuple[int, ...], F: int, P: int, most: float, device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    inputs = [t.to(device) for t in _inputs(leading, own, F, P)]
    weight = torch.randn(leading, device=device)

    def found(dtype: torch.dtype, function: object) -> list[Tensor]:
        tensors = [t.to(dtype) for t in inputs]
        leaves = [t.requires_grad_() for t in tensors[:3]]
        total = function(*tensors, most=most, eps=1e-4)  # type: ignore[operator]
        return [total, *torch.autograd.grad((total * weight).sum(), leaves)]

    exact = found(torch.float64, reference.frame_error)
    plain = found(torch.float32, reference.frame_error)
    monkeypatch.setattr(op, "reference", None)  # no way around the kernels
    for ours, theirs, true in zip(found(torch.float32, frame_error), plain, exact, strict=True):
        error, allowed = (ours - true).norm(), (theirs - true).norm()
        assert error <= 1.5 * allowed + 1e-6 * true.norm()


def test_without_gradients_nothing_is_made_for_them(device: str) -> None:
    inputs = [t.to(device) for t in _inputs((1,), (1,), 20, 30)]
    total = frame_error(*inputs, most=5.0)
    torch.testing.assert_close(total, reference.frame_error(*inputs, most=5.0, eps=1e-4))
    assert total.grad_fn is None

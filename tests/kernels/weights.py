"""Random weights of the operators' tests, and how a result's gradient is compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Check = Callable[..., None]
Op = Callable[..., Tensor]
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def linear(out: int, into: int, bias: float = 1.0) -> list[Tensor]:
    """A matrix and its bias."""
    return [torch.randn(out, into) * into**-0.5, bias * torch.randn(out)]


def norm(C: int, spread: float = 0.1) -> list[Tensor]:
    """A layer norm's weight and bias."""
    return [1 + spread * torch.randn(C), spread * torch.randn(C)]


def to(tensors: list[Tensor], device: str, dtype: torch.dtype) -> list[Tensor]:
    return [t.to(device, dtype) for t in tensors]


def hopper(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a Hopper card."""
    skip = pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper card")
    return pytest.mark.gpu(skip(test))  # type: ignore[no-any-return]


def gradients(op: Op, inputs: list[Tensor]) -> list[Tensor]:
    """The result and the gradients of all inputs, for one random gradient of the result."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = op(*leaves)
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn_like(out))]


def check_passed_on(
    x: Tensor, apart: Op, together: Callable[[Tensor], tuple[Tensor, Tensor]],
    used: tuple[float, float],
) -> None:  # fmt: skip
    """An op that hands its input on gives the gradients that autograd's sum would."""
    found = []
    for fused in (True, False):
        leaf = x.clone().requires_grad_()
        result, same = together(leaf) if fused else (apart(leaf), leaf)
        parts = [(t * t).sum() * factor for t, factor in zip((result, same), used, strict=True)]
        loss = sum(p for p, f in zip(parts, used, strict=True) if f)
        found.append(torch.autograd.grad(loss, leaf)[0])  # type: ignore[arg-type]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.ops.optimizer.op import FusedAdamEMA
from evofeed.kernels.ops.optimizer.reference import adam_ema_step

pytestmark = pytest.mark.gpu


def _optimizer(
    device: str, size: int = 5000, dtype: torch.dtype = torch.float32, **options: float
) -> FusedAdamEMA:
    generator = torch.Generator().manual_seed(0)
    param = torch.randn(size, generator=generator).to(device)
    grad = torch.randn(size, generator=generator).to(device, dtype)
    zeros = [torch.zeros(size, device=device) for _ in range(2)]
    low = torch.zeros(size, device=device, dtype=torch.float16)
    return FusedAdamEMA(param, grad, *zeros, param.clone(), low, max_norm=0.1, **options)


def _state(optimizer: FusedAdamEMA) -> list[Tensor]:
    o = optimizer
    assert o.ema is not None and o.low is not None
    return [o.param, o.exp_avg, o.exp_avg_sq, o.ema, o.low.float(), o.updates]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_steps_follow_the_plain_version(dtype: torch.dtype, device: str) -> None:
    fused, plain = (_optimizer(device, dtype=dtype) for _ in range(2))
    for number in range(3):
        for optimizer in (fused, plain):
            optimizer.rate.fill_(1e-3 * (number + 1))
            optimizer.grad.mul_(-0.7)
        norm = fused.step()
        torch.testing.assert_close(norm, adam_ema_step(plain))
    for ours, theirs in zip(_state(fused), _state(plain), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_torch_adam_agrees_without_clipping(device: str) -> None:
    ours = _optimizer(device)
    ours.max_norm = float("inf")
    weights = ours.param.clone().requires_grad_()
    theirs = torch.optim.Adam([weights], lr=1e-2, eps=1e-5)
    ours.rate.fill_(1e-2)
    for _ in range(4):
        weights.grad = ours.grad.clone()
        theirs.step()
        ours.step()
    torch.testing.assert_close(ours.param, weights.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float, device: str) -> None:
    optimizer = _optimizer(device)
    optimizer.rate.fill_(1e-3)
    optimizer.step()
    before = [t.clone() for t in _state(optimizer)]
    optimizer.grad[7] = bad
    assert not torch.isfinite(optimizer.step())
    assert all(torch.equal(a, b) for a, b in zip(before, _state(optimizer), strict=True))


def test_buffers_of_two_lengths_are_refused() -> None:
    with pytest.raises(UnsupportedShape, match="one length"):
        FusedAdamEMA(torch.zeros(3), torch.zeros(4), torch.zeros(3), torch.zeros(3))


def test_buffers_of_another_type_or_device_are_refused() -> None:
    zeros = [torch.zeros(3) for _ in range(3)]
    with pytest.raises(UnsupportedShape, match=r"grad is torch.float64; it may be float32"):
        FusedAdamEMA(torch.zeros(3), torch.zeros(3).double(), *zeros[1:])
    with pytest.raises(KernelError, match="exp_avg is on meta, param on cpu"):
        FusedAdamEMA(*zeros[:2], torch.zeros(3, device="meta"), zeros[2])

"""Adam, LAMB and LARS over flat buffers: against plain versions and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.drop_ins.layerwise import FusedLAMB, FusedLARS, Span, spans
from evofeed.kernels.ops.optimizer.op import FusedAdamEMA
from evofeed.kernels.ops.optimizer.reference import adam_ema_step

pytestmark = pytest.mark.gpu

# A weight longer than a chunk, a bias, a weight of zeros, a scalar, a gap before the last.
SHAPES = [(70, 90), (33,), (4, 5), (), (3, 7)]


def _spans(align: int) -> list[Span]:
    return spans([torch.empty(shape) for shape in SHAPES], align)


def _buffers(device: str, align: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """param, grad, ema, low and two states, the third tensor all zero."""
    found = _spans(align)
    size = found[-1].start + found[-1].size + 5
    generator = torch.Generator().manual_seed(0)
    param, grad = (torch.randn(size, generator=generator) for _ in range(2))
    param[found[2].start : found[2].start + found[2].size] = 0
    param, grad = param.to(device), grad.to(device, dtype)
    low = param.half()
    return [param, grad, param.clone(), low, *(torch.zeros(size, device=device) for _ in range(2))]


def _make(kind: Any, device: str, align: int = 16, **options: Any) -> Any:
    dtype = options.pop("dtype", torch.float32)
    param, grad, ema, low, *states = _buffers(device, align, dtype)
    usual = {"spans": _spans(align), "weight_decay": 0.1, "max_norm": 0.5}
    if kind is FusedAdamEMA:
        usual = {"max_norm": 0.1}
    return kind(param, grad, *states[: 1 if kind is FusedLARS else 2], ema, low, **usual | options)


_adam, _lamb, _lars = (partial(_make, kind) for kind in (FusedAdamEMA, FusedLAMB, FusedLARS))


def _state(o: Any) -> list[Tensor]:
    names = ("param", "ema", "low", "exp_avg", "exp_avg_sq", "momentum_buffer", "updates")
    return [getattr(o, name) for name in names if hasattr(o, name)]


Make = Callable[..., Any]


def _plain_step(o: FusedAdamEMA | FusedLAMB | FusedLARS) -> Tensor:
    """One step, tensor by tensor; returns the norm before clipping."""
    if isinstance(o, FusedAdamEMA):
        return adam_ema_step(o)
    norm: Tensor = torch.linalg.vector_norm(o.grad, dtype=torch.float32)
    grad = o.grad.float() * (o.max_norm / (norm + 1e-6)).clamp(max=1.0)
    o.updates.add_(1)
    for start, size, adapted in o.spans:
        part = slice(start, start + size)
        weights, slope, decay = o.param[part], grad[part], o.weight_decay if adapted else 0.0
        if isinstance(o, FusedLAMB):
            moments = [moment[part] for moment in (o.exp_avg, o.exp_avg_sq)]
            moments[0].lerp_(slope, 1 - o.beta1)
            moments[1].lerp_(slope**2, 1 - o.beta2)
            first, second = (
                m / (1 - beta**o.updates).float()
                for m, beta in zip(moments, (o.beta1, o.beta2), strict=True)
            )
            move = first / (second.sqrt() + o.eps) + decay * weights
            above, below = weights.norm(), move.norm()
        else:
            move = slope + decay * weights
            above, below = o.trust * weights.norm(), slope.norm()
            below = (below + decay * weights.norm()) * (below > 0)
        scale = above / below if adapted and above > 0 and below > 0 else 1.0
        step = o.rate * scale * move
        if isinstance(o, FusedLARS):
            step = o.momentum_buffer[part].mul_(o.momentum).add_(step)
        weights.sub_(step)
        for copied, share in ((o.ema, 1 - o.ema_decay), (o.low, 1.0)):
            assert copied is not None
            copied[part] = torch.lerp(copied[part].float(), weights, share).to(copied.dtype)
    return norm


@pytest.mark.parametrize("make", [_adam, _lamb, _lars])
@pytest.mark.parametrize(("align", "dtype"), [(16, torch.float16), (1, torch.float32)])
def test_steps_follow_the_plain_version(
    make: Make, align: int, dtype: torch.dtype, device: str
) -> None:
    fused, plain = (make(device, align, dtype=dtype) for _ in range(2))
    for number in range(3):
        for optimizer in (fused, plain):
            optimizer.rate.fill_(1e-2 * (number + 1))
            optimizer.grad.mul_(-0.7)
        torch.testing.assert_close(fused.step(), _plain_step(plain))
    for ours, theirs in zip(_state(fused), _state(plain), strict=True):
        # the 16-bit copy may round a last bit the other way
        near = 1e-3 if ours.dtype is torch.float16 else 2e-5
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=near)


def _torch_steps(optimizer: Any, kind: type[torch.optim.Optimizer], **options: Any) -> Tensor:
    """Weights after three steps of one of PyTorch's own, on the same gradients."""
    weights = optimizer.param.clone().requires_grad_()
    theirs = kind([weights], lr=1e-2, **options)  # type: ignore[call-arg]
    optimizer.rate.fill_(1e-2)
    for _ in range(3):
        weights.grad = optimizer.grad.clone()
        theirs.step()
        optimizer.step()
    return weights.detach()


def test_adam_is_torchs_and_lamb_without_adaptation_too_and_lars_is_sgd(device: str) -> None:
    adam = _adam(device, 1, max_norm=float("inf"))
    expected = _torch_steps(adam, torch.optim.Adam, eps=1e-5)
    torch.testing.assert_close(adam.param, expected, atol=1e-6, rtol=1e-5)
    plain = [span._replace(adapted=False) for span in _spans(1)]
    covered = slice(0, plain[-1].start + plain[-1].size)
    lamb = _lamb(device, 1, spans=plain, max_norm=float("inf"))
    expected = _torch_steps(lamb, torch.optim.Adam, eps=1e-6)
    torch.testing.assert_close(lamb.param[covered], expected[covered], atol=1e-6, rtol=1e-5)
    lars = _lars(device, 1, spans=plain, max_norm=float("inf"))
    expected = _torch_steps(lars, torch.optim.SGD, momentum=0.9)
    torch.testing.assert_close(lars.param[covered], expected[covered], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [_adam, _lamb, _lars])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(make: Make, bad: float, device: str) -> None:
    optimizer = make(device)
    optimizer.rate.fill_(1e-3)
    for _ in range(2):  # also before any finite step
        before = [t.clone() for t in _state(optimizer)]
        good = optimizer.grad[7].clone()
        optimizer.grad[7] = bad
        assert not torch.isfinite(optimizer.step())
        assert all(map(torch.equal, before, _state(optimizer)))
        optimizer.grad[7] = good
        optimizer.step()


@pytest.mark.parametrize("make", [_lamb, _lars])
def test_spans_beyond_the_buffers_are_refused(make: Make, device: str) -> None:
    with pytest.raises(UnsupportedShape, match="reach to element 10000"):
        make(device, spans=[Span(0, 10_000, True)])
    with pytest.raises(UnsupportedShape, match="0 spans"):
        make(device, spans=[])


def test_buffers_of_two_lengths_or_of_another_type_or_device_are_refused() -> None:
    zeros = [torch.zeros(3) for _ in range(3)]
    with pytest.raises(UnsupportedShape, match="one length"):
        FusedAdamEMA(torch.zeros(3), torch.zeros(4), *zeros[1:])
    with pytest.raises(UnsupportedShape, match=r"grad is torch.float64; it may be float32"):
        FusedAdamEMA(torch.zeros(3), torch.zeros(3).double(), *zeros[1:])
    with pytest.raises(KernelError, match="exp_avg is on meta, param on cpu"):
        FusedAdamEMA(*zeros[:2], torch.zeros(3, device="meta"), zeros[2])


@pytest.mark.parametrize("make", [_lamb, _lars])
def test_a_step_can_be_captured(make: Make, device: str) -> None:
    if device != "cuda":
        pytest.skip("CUDA graphs need a GPU")
    eager, captured = make(device), make(device)
    for optimizer in (eager, captured):
        optimizer.rate.fill_(1e-2)
        optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for rate in (1e-2, 3e-2):
        for optimizer in (eager, captured):
            optimizer.rate.fill_(rate)
        eager.step()
        graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(_state(eager), _state(captured), strict=True))

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Clipping, Adam, moving average and the 16-bit copy of the weights in one pass over memory.

All weights lie in one flat buffer (as the trainer keeps them), so there is no
table of pointers and nothing to copy to the device. Learning rate, number of
updates and clip factor are scalars on the device: a step never waits for the
GPU and can be captured in a CUDA graph. A gradient that is not finite changes
nothing.

Bytes per weight: gradient 4 (or 2), weight, moments and average 16 read and 16
written, 16-bit copy 2 written.
"""

import math
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from evofeed.errors import KernelError, UnsupportedShape
from evofeed.kernels.ops.optimizer.reference import adam_ema_step
from evofeed.kernels.runtime.backend import sm_count, tl, triton, usable

__all__ = [
    "FlatOptimizer",
    "FlatOptions",
    "FusedAdamEMA",
    "clipped",
    "move_moments",
    "store_weights",
]


@triton.jit
def _square_sum_kernel(GRAD, PARTIAL, N, whole, BLOCK: tl.constexpr):
    """Sum of squares of every `num_programs`-th block, one partial sum per program.

    `whole` is N down to a multiple of 16: only then are the loads 16 bytes wide.
    """
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, whole, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        grad = tl.load(GRAD + at, mask=at < whole, other=0.0).to(tl.float32)
        total += grad * grad
    if tl.program_id(0) == 0:
        at = whole + tl.arange(0, BLOCK)
        grad = tl.load(GRAD + at, mask=at < N, other=0.0).to(tl.float32)
        total += grad * grad
    tl.store(PARTIAL + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _scalars_kernel(
    PARTIAL, G, RATE, UPDATES, SCALARS, max_norm, log2_beta1, log2_beta2, BLOCK: tl.constexpr
):  # fmt: skip
    """SCALARS = norm, clip factor, step size, 1 / root of the second correction, finite or 0,
    and 1 / the first correction.
    """
    at = tl.arange(0, BLOCK)
    norm = tl.sqrt(tl.sum(tl.load(PARTIAL + at, mask=at < G, other=0.0), 0))
    finite = ((norm == norm) & (norm < float("inf"))).to(tl.float32)
    updates = tl.load(UPDATES) + finite.to(tl.float64)
    tl.store(UPDATES, updates)
    # float64: 1 - beta2**t has three digits less than beta2**t itself
    one = tl.full([], 1.0, tl.float64)
    first = one - tl.exp2(updates * log2_beta1)
    second = one - tl.exp2(updates * log2_beta2)
    # before the first finite step both corrections vanish
    first = tl.maximum(first, 1e-12).to(tl.float32)
    second = tl.maximum(second, 1e-12).to(tl.float32)
    clip = tl.minimum(max_norm / (norm + 1e-6), 1.0)
    tl.store(SCALARS, norm)
    tl.store(SCALARS + 1, tl.where(finite > 0, clip, 0.0))
    tl.store(SCALARS + 2, tl.load(RATE) * finite / first)
    tl.store(SCALARS + 3, 1.0 / tl.sqrt(second))
    tl.store(SCALARS + 4, finite)
    tl.store(SCALARS + 5, 1.0 / first)


@triton.jit
def clipped(GRAD, SCALARS, at, inside):
    """The gradient times the clip factor, in float32; zeros where the whole is not finite."""
    grad = tl.load(GRAD + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(tl.load(SCALARS + 4) > 0, grad, 0.0) * tl.load(SCALARS + 1)


@triton.jit
def move_moments(EXP_AVG, EXP_AVG_SQ, SCALARS, at, inside, grad, step1, step2):
    """Adam's moments after a gradient, stored and returned."""
    finite = tl.load(SCALARS + 4)
    exp_avg = tl.load(EXP_AVG + at, mask=inside, other=0.0)
    exp_avg_sq = tl.load(EXP_AVG_SQ + at, mask=inside, other=0.0)
    exp_avg += (grad - exp_avg) * (step1 * finite)
    exp_avg_sq += (grad * grad - exp_avg_sq) * (step2 * finite)
    tl.store(EXP_AVG + at, exp_avg, mask=inside)
    tl.store(EXP_AVG_SQ + at, exp_avg_sq, mask=inside)
    return exp_avg, exp_avg_sq


@triton.jit
def store_weights(
    PARAM, EMA, LOW, SCALARS, at, inside, param, ema_step, HAS_EMA: tl.constexpr,
    HAS_LOW: tl.constexpr,
):  # fmt: skip
    """Stores new weights, their moving average and 16-bit copy."""
    tl.store(PARAM + at, param, mask=inside)
    if HAS_EMA:
        ema = tl.load(EMA + at, mask=inside, other=0.0)
        ema += (param - ema) * (ema_step * tl.load(SCALARS + 4))
        tl.store(EMA + at, ema, mask=inside)
    if HAS_LOW:
        tl.store(LOW + at, param.to(LOW.dtype.element_ty), mask=inside)


@triton.jit
def _update_kernel(
    PARAM, GRAD, EXP_AVG, EXP_AVG_SQ, EMA, LOW, SCALARS, N, step1, step2, eps, ema_step,
    HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    grad = clipped(GRAD, SCALARS, at, inside)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    exp_avg, exp_avg_sq = move_moments(EXP_AVG, EXP_AVG_SQ, SCALARS, at, inside, grad, step1, step2)
    below = tl.sqrt(exp_avg_sq) * tl.load(SCALARS + 3) + eps
    param -= tl.load(SCALARS + 2) * exp_avg / below
    store_weights(PARAM, EMA, LOW, SCALARS, at, inside, param, ema_step, HAS_EMA, HAS_LOW)


class FlatOptions(TypedDict, total=False):
    """What every flat optimizer takes.

    Attributes:
        updates: float64 scalar that counts finite updates (from a checkpoint), else a new one.
        max_norm: gradients longer than this are scaled down to it; infinite for no clipping.
        ema_decay: decay of the weights' moving average, 0.999 unless given.
    """

    updates: Tensor | None
    max_norm: float
    ema_decay: float


class FlatOptimizer:
    """Flat buffers, and scalars on their device, that a step is made of.

    The buffers are the caller's and are changed in place; without a kernel (CPU,
    no Triton) a plain version does the same.

    Attributes:
        rate: learning rate, a float32 scalar on the device; fill it before a step.
        updates: finite updates so far, a float64 scalar on the device.
    """

    # What the bias corrections are made of; an optimizer without them has none.
    beta1 = beta2 = 0.0

    def __init__(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        ema: Tensor | None,
        low: Tensor | None,
        *,
        updates: Tensor | None = None,
        max_norm: float = math.inf,
        ema_decay: float = 0.999,
    ) -> None:
        """Binds the buffers, see `FusedAdamEMA`; `state` is the optimizer's own, by name."""
        _check(param, {"param": param, "grad": grad, **state, "ema": ema, "low": low})
        self.param, self.grad, self.ema, self.low = param, grad, ema, low
        self.max_norm, self.ema_decay = max_norm, ema_decay
        device = param.device
        self.rate = torch.zeros((), device=device)
        if updates is None:
            updates = torch.zeros((), dtype=torch.float64, device=device)
        self.updates = updates
        self._scalars = torch.zeros(6, device=device)
        self._partial = torch.zeros(min(1024, 4 * sm_count(param)), device=device)

    def _find_scalars(self) -> Tensor:
        """Fills `_scalars`; returns the norm of the gradient."""
        N, G = self.param.numel(), self._partial.numel()
        _square_sum_kernel[(G,)](self.grad, self._partial, N, N // 16 * 16, BLOCK=4096, num_warps=8)
        logs = (math.log2(beta) if beta > 0 else -1e4 for beta in (self.beta1, self.beta2))
        _scalars_kernel[(1,)](
            self._partial, G, self.rate, self.updates, self._scalars, self.max_norm, *logs,
            BLOCK=triton.next_power_of_2(G),
        )  # fmt: skip
        return self._scalars[0]


def _check(param: Tensor, buffers: dict[str, Tensor | None]) -> None:
    """Raises where the kernels would read or write what they must not."""
    low = (torch.bfloat16, torch.float16)
    for name, buffer in buffers.items():
        if buffer is None:
            continue
        if buffer.shape != param.shape or not buffer.is_contiguous() or param.dim() != 1:
            raise UnsupportedShape(
                f"{name} is {list(buffer.shape)} beside param {list(param.shape)}: all buffers "
                "must be flat, contiguous and of one length"
            )
        known = {"low": low, "grad": (torch.float32, *low)}.get(name, (torch.float32,))
        if buffer.dtype not in known:
            allowed = ", ".join(str(dtype)[6:] for dtype in known)
            raise UnsupportedShape(f"{name} is {buffer.dtype}; it may be {allowed}")
        if buffer.device != param.device:
            raise KernelError(f"{name} is on {buffer.device}, param on {param.device}: move one")


class FusedAdamEMA(FlatOptimizer):
    """Clipped Adam and the weights' moving average over flat buffers, four launches a step."""

    def __init__(
        self,
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        ema: Tensor | None = None,
        low: Tensor | None = None,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-5,
        **options: Unpack[FlatOptions],
    ) -> None:
        """Binds the buffers.

        Args:
            param: weights, float32 `[N]`.
            grad: gradients, float32 or 16-bit `[N]`.
            exp_avg, exp_avg_sq: Adam's moments, float32 `[N]`.
            ema: moving average of the weights, float32 `[N]`, or None for none.
            low: a 16-bit copy of the weights to keep up to date, or None.
            beta1, beta2, eps: Adam's.
            options: `updates`, `max_norm` and `ema_decay`, see `FlatOptions`.

        Raises:
            UnsupportedShape: a buffer has another length or a type no kernel takes.
            KernelError: a buffer lies on another device.
        """
        state = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        super().__init__(param, grad, state, ema, low, **options)
        self.exp_avg, self.exp_avg_sq = exp_avg, exp_avg_sq
        self.beta1, self.beta2, self.eps = beta1, beta2, eps

    def step(self) -> Tensor:
        """Updates all buffers; returns the norm before clipping, a scalar on the device."""
        if not usable(self.param, self.grad):
            return adam_ema_step(self)
        norm = self._find_scalars()
        N = self.param.numel()
        # The tail goes alone: a length that is no multiple of 16 costs the wide loads.
        whole = N // 16 * 16
        for part in (slice(0, whole), slice(whole, N)):
            self._update(part)
        return norm

    def _update(self, part: slice) -> None:
        size = part.stop - part.start
        if size == 0:
            return
        buffers = (self.param, self.grad, self.exp_avg, self.exp_avg_sq, self.ema, self.low)
        _update_kernel[(triton.cdiv(size, 1024),)](
            *(None if buffer is None else buffer[part] for buffer in buffers),
            self._scalars, size, 1 - self.beta1, 1 - self.beta2, self.eps, 1 - self.ema_decay,
            HAS_EMA=self.ema is not None, HAS_LOW=self.low is not None, BLOCK=1024, num_warps=4,
        )  # fmt: skip

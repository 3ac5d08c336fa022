# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""LAMB and LARS over flat buffers: optimizers that scale each tensor's step by its own norm.

The buffers are those of `FusedAdamEMA`; a table of chunks says which part of them is
which tensor. One pass finds the norms, one applies the update, clipping, moving
average and 16-bit copy included. All scalars stay on the device: a step can be
captured in a CUDA graph, and a gradient that is not finite changes nothing. Sums
have a fixed order: equal bits from run to run.

LAMB: You et al. 2019, arXiv:1904.00962, algorithm 2, with bias correction.
LARS: You et al. 2017, arXiv:1708.03888, algorithm 1.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from evofeed.errors import UnsupportedShape
from evofeed.kernels.ops.optimizer.op import (
    FlatOptimizer,
    FlatOptions,
    clipped,
    move_moments,
    store_weights,
)
from evofeed.kernels.ops.optimizer.reference import lamb_step, lars_step
from evofeed.kernels.runtime.backend import tl, triton, usable

__all__ = ["FusedLAMB", "FusedLARS", "Span", "spans"]

_CHUNK = 4096  # elements one program handles


class Span(NamedTuple):
    """One tensor's part of the flat buffers.

    Attributes:
        start, size: elements.
        adapted: whether its step is scaled by its norm and its weights decay; by
            custom not for biases and norms.
    """

    start: int
    size: int
    adapted: bool


def spans(tensors: Sequence[Tensor], align: int = 1) -> list[Span]:
    """Spans of tensors laid one after the other, each from a multiple of `align` elements.

    Tensors of one axis or none are not adapted.
    """
    found, start = [], 0
    for tensor in tensors:
        found.append(Span(start, tensor.numel(), tensor.dim() > 1))
        start += -(-tensor.numel() // align) * align
    return found


@triton.jit
def _chunk(TABLE, FULL: tl.constexpr, ALIGN: tl.constexpr, CHUNK: tl.constexpr):
    """Offsets of this program's chunk, which are inside, its tensor's number and its own."""
    row = TABLE + tl.program_id(0) * 4
    start, count = tl.load(row), tl.load(row + 1)
    tensor, number = tl.load(row + 2), tl.load(row + 3)
    at = tl.arange(0, CHUNK)
    # A mask the compiler knows to be true leaves loads of 16 bytes.
    inside = tl.full([CHUNK], True, tl.int1) if FULL else at < count
    return start * ALIGN + at, inside, tensor, number


@triton.jit
def _lamb_direction(param, exp_avg, exp_avg_sq, first, inverse_root, eps, decay):
    return exp_avg * first / (tl.sqrt(exp_avg_sq) * inverse_root + eps) + decay * param


@triton.jit
def _lamb_norms_kernel(
    PARAM, GRAD, EXP_AVG, EXP_AVG_SQ, SCALARS, TABLE, ADAPTED, PARTIAL, step1, step2, eps, decay,
    FULL: tl.constexpr, ALIGN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Moves the moments; sums of squares of one chunk's weights and direction."""
    at, inside, tensor, number = _chunk(TABLE, FULL, ALIGN, CHUNK)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    grad = clipped(GRAD, SCALARS, at, inside)
    exp_avg, exp_avg_sq = move_moments(EXP_AVG, EXP_AVG_SQ, SCALARS, at, inside, grad, step1, step2)
    move = _lamb_direction(
        param, exp_avg, exp_avg_sq, tl.load(SCALARS + 5), tl.load(SCALARS + 3), eps,
        decay * tl.load(ADAPTED + tensor),
    )  # fmt: skip
    tl.store(PARTIAL + 2 * number, tl.sum(param * param, 0))
    tl.store(PARTIAL + 2 * number + 1, tl.sum(move * move, 0))


@triton.jit
def _lars_norms_kernel(
    PARAM, GRAD, SCALARS, TABLE, PARTIAL, FULL: tl.constexpr, ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums of squares of one chunk's weights and clipped gradient."""
    at, inside, _, number = _chunk(TABLE, FULL, ALIGN, CHUNK)
    grad = clipped(GRAD, SCALARS, at, inside)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    tl.store(PARTIAL + 2 * number, tl.sum(param * param, 0))
    tl.store(PARTIAL + 2 * number + 1, tl.sum(grad * grad, 0))


@triton.jit
def _ratio_kernel(PARTIAL, FIRST, ADAPTED, RATIO, trust, decay, LARS: tl.constexpr):
    """The factor of one tensor's step, from the sums of its chunks."""
    tensor = tl.program_id(0)
    weights = tl.zeros([128], tl.float32)
    moves = tl.zeros([128], tl.float32)
    last = tl.load(FIRST + tensor + 1)
    for first in range(tl.load(FIRST + tensor), last, 128):
        chunks = first + tl.arange(0, 128)
        weights += tl.load(PARTIAL + 2 * chunks, mask=chunks < last, other=0.0)
        moves += tl.load(PARTIAL + 2 * chunks + 1, mask=chunks < last, other=0.0)
    weight, move = tl.sqrt(tl.sum(weights, 0)), tl.sqrt(tl.sum(moves, 0))
    below = move + decay * weight if LARS else move
    scaled = (tl.load(ADAPTED + tensor) > 0) & (weight > 0) & (move > 0)
    tl.store(RATIO + tensor, tl.where(scaled, trust * weight / tl.maximum(below, 1e-30), 1.0))


@triton.jit
def _lamb_update_kernel(
    PARAM, EXP_AVG, EXP_AVG_SQ, EMA, LOW, RATE, SCALARS, TABLE, ADAPTED, RATIO, eps, decay,
    ema_step, HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, FULL: tl.constexpr,
    ALIGN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    at, inside, tensor, _ = _chunk(TABLE, FULL, ALIGN, CHUNK)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    exp_avg = tl.load(EXP_AVG + at, mask=inside, other=0.0)
    exp_avg_sq = tl.load(EXP_AVG_SQ + at, mask=inside, other=0.0)
    move = _lamb_direction(
        param, exp_avg, exp_avg_sq, tl.load(SCALARS + 5), tl.load(SCALARS + 3), eps,
        decay * tl.load(ADAPTED + tensor),
    )  # fmt: skip
    param -= tl.load(RATE) * tl.load(SCALARS + 4) * tl.load(RATIO + tensor) * move
    store_weights(PARAM, EMA, LOW, SCALARS, at, inside, param, ema_step, HAS_EMA, HAS_LOW)


@triton.jit
def _lars_update_kernel(
    PARAM, GRAD, MOMENTUM, EMA, LOW, RATE, SCALARS, TABLE, ADAPTED, RATIO, momentum, decay,
    ema_step, HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, FULL: tl.constexpr,
    ALIGN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    at, inside, tensor, _ = _chunk(TABLE, FULL, ALIGN, CHUNK)
    finite = tl.load(SCALARS + 4)
    grad = clipped(GRAD, SCALARS, at, inside)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    before = tl.load(MOMENTUM + at, mask=inside, other=0.0)
    move = grad + decay * tl.load(ADAPTED + tensor) * param
    after = momentum * before + tl.load(RATE) * tl.load(RATIO + tensor) * move
    after = tl.where(finite > 0, after, before)
    tl.store(MOMENTUM + at, after, mask=inside)
    param -= finite * after
    store_weights(PARAM, EMA, LOW, SCALARS, at, inside, param, ema_step, HAS_EMA, HAS_LOW)


class _Tables:
    """Chunks of all tensors, on the device."""

    def __init__(self, found: Sequence[Span], param: Tensor) -> None:
        end = max((span.start + span.size for span in found), default=0)
        if end > param.numel() or not found:
            raise UnsupportedShape(
                f"the {len(found)} spans reach to element {end} of {param.numel()}: "
                "give one span for each tensor in the buffers"
            )
        # Wide loads need starts that the compiler knows to be aligned.
        self.align = math.gcd(16, *(span.start for span in found))
        rows: list[tuple[int, int, int, int]] = []
        first = [0]
        for number, span in enumerate(found):
            for offset in range(0, span.size, _CHUNK):
                count = min(_CHUNK, span.size - offset)
                start = (span.start + offset) // self.align
                rows.append((start, count, number, len(rows)))
            first.append(len(rows))
        device = param.device
        whole = [row for row in rows if row[1] == _CHUNK]
        rest = [row for row in rows if row[1] < _CHUNK]
        self._parts = [
            (torch.tensor(part, dtype=torch.int64, device=device), part is whole)
            for part in (whole, rest)
            if part
        ]
        self.first = torch.tensor(first, dtype=torch.int64, device=device)
        self.adapted = torch.tensor([float(span.adapted) for span in found], device=device)
        self.ratio = torch.ones(len(found), device=device)
        self.partial = torch.zeros((len(rows), 2), device=device)

    def launch(self, kernel: Any, before: tuple[Any, ...], *after: Any, **options: bool) -> None:
        """Runs a kernel over all chunks; the table stands between its arguments."""
        for table, full in self._parts:
            kernel[(len(table),)](
                *before, table, *after, **options, FULL=full, ALIGN=self.align, CHUNK=_CHUNK,
                num_warps=8,
            )  # fmt: skip


class _Layerwise(FlatOptimizer):
    """A flat optimizer whose steps are scaled tensor by tensor."""

    def __init__(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        ema: Tensor | None,
        low: Tensor | None,
        spans: Sequence[Span],
        weight_decay: float,
        **options: Unpack[FlatOptions],
    ) -> None:
        super().__init__(param, grad, state, ema, low, **options)
        self.spans, self.weight_decay = list(spans), weight_decay
        self._tables = _Tables(self.spans, param)

    def _update(
        self, kernel: Any, before: tuple[Tensor, ...], trust: float, constant: float
    ) -> None:
        """Ratios from the norms of all chunks, then the update; `constant`: eps or momentum."""
        t, lars = self._tables, kernel is _lars_update_kernel
        decay = self.weight_decay
        _ratio_kernel[(len(self.spans),)](
            t.partial, t.first, t.adapted, t.ratio, trust, decay if lars else 0.0, LARS=lars,
            num_warps=1,
        )  # fmt: skip
        t.launch(
            kernel, (*before, self.ema, self.low, self.rate, self._scalars),
            t.adapted, t.ratio, constant, decay, 1 - self.ema_decay,
            HAS_EMA=self.ema is not None, HAS_LOW=self.low is not None,
        )  # fmt: skip


class FusedLAMB(_Layerwise):
    """Clipped LAMB and the weights' moving average over flat buffers, seven launches a step."""

    def __init__(
        self,
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        ema: Tensor | None = None,
        low: Tensor | None = None,
        *,
        spans: Sequence[Span],
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **options: Unpack[FlatOptions],
    ) -> None:
        """Binds the buffers, see `FusedAdamEMA`.

        Args:
            param, grad, exp_avg, exp_avg_sq, ema, low: as there.
            spans: where each tensor lies in them; see `spans`. Gaps are left alone.
            beta1, beta2, eps, options: as there.
            weight_decay: of adapted tensors, part of the direction as in the paper.
        """
        state = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        super().__init__(param, grad, state, ema, low, spans, weight_decay, **options)
        self.exp_avg, self.exp_avg_sq = exp_avg, exp_avg_sq
        self.beta1, self.beta2, self.eps = beta1, beta2, eps

    def step(self) -> Tensor:
        """Updates all buffers; returns the norm before clipping, a scalar on the device."""
        if not usable(self.param, self.grad):
            return lamb_step(self)
        norm, t = self._find_scalars(), self._tables
        t.launch(
            _lamb_norms_kernel,
            (self.param, self.grad, self.exp_avg, self.exp_avg_sq, self._scalars),
            t.adapted, t.partial, 1 - self.beta1, 1 - self.beta2, self.eps, self.weight_decay,
        )  # fmt: skip
        self._update(
            _lamb_update_kernel, (self.param, self.exp_avg, self.exp_avg_sq), 1.0, self.eps
        )
        return norm


class FusedLARS(_Layerwise):
    """Clipped LARS and the weights' moving average over flat buffers, seven launches a step."""

    def __init__(
        self,
        param: Tensor,
        grad: Tensor,
        momentum_buffer: Tensor,
        ema: Tensor | None = None,
        low: Tensor | None = None,
        *,
        spans: Sequence[Span],
        momentum: float = 0.9,
        trust: float = 1e-3,
        weight_decay: float = 0.0,
        **options: Unpack[FlatOptions],
    ) -> None:
        """Binds the buffers, see `FusedAdamEMA`.

        Args:
            param, grad, ema, low, options: as there.
            momentum_buffer: float32 `[N]`, zeros at first; it holds steps, the rate included.
            spans: where each tensor lies in them; see `spans`. Gaps are left alone.
            momentum: share of the last step that is kept.
            trust: trust coefficient, the paper's eta.
            weight_decay: of adapted tensors.
        """
        state = {"momentum_buffer": momentum_buffer}
        super().__init__(param, grad, state, ema, low, spans, weight_decay, **options)
        self.momentum_buffer, self.momentum, self.trust = momentum_buffer, momentum, trust

    def step(self) -> Tensor:
        """Updates all buffers; returns the norm before clipping, a scalar on the device."""
        if not usable(self.param, self.grad):
            return lars_step(self)
        norm, t = self._find_scalars(), self._tables
        t.launch(_lars_norms_kernel, (self.param, self.grad, self._scalars), t.partial)
        before = (self.param, self.grad, self.momentum_buffer)
        self._update(_lars_update_kernel, before, self.trust, self.momentum)
        return norm

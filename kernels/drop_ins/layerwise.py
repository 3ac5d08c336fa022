# mypy: disable-error-code="no-untyped-call"
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
from evofeed.kernels.drop_ins.layerwise_reference import lamb_step, lars_step
from evofeed.kernels.drop_ins.layerwise_triton import (
    lamb_norms_kernel,
    lamb_update_kernel,
    lars_norms_kernel,
    lars_update_kernel,
    ratio_kernel,
)
from evofeed.kernels.ops.optimizer.op import FlatBuffers, FlatOptions
from evofeed.kernels.runtime.backend import usable

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
        """Runs a kernel over all chunks; the table is between its arguments."""
        for table, full in self._parts:
            kernel[(len(table),)](
                *before, table, *after, **options, FULL=full, ALIGN=self.align, CHUNK=_CHUNK,
                num_warps=8,
            )  # fmt: skip


class _Layerwise(FlatBuffers):
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
        t, lars = self._tables, kernel is lars_update_kernel
        decay = self.weight_decay
        ratio_kernel[(len(self.spans),)](
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
            spans: where each tensor is in them; see `spans`. Gaps are left alone.
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
            lamb_norms_kernel,
            (self.param, self.grad, self.exp_avg, self.exp_avg_sq, self._scalars),
            t.adapted, t.partial, 1 - self.beta1, 1 - self.beta2, self.eps, self.weight_decay,
        )  # fmt: skip
        self._update(lamb_update_kernel, (self.param, self.exp_avg, self.exp_avg_sq), 1.0, self.eps)
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
            spans: where each tensor is in them; see `spans`. Gaps are left alone.
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
        t.launch(lars_norms_kernel, (self.param, self.grad, self._scalars), t.partial)
        before = (self.param, self.grad, self.momentum_buffer)
        self._update(lars_update_kernel, before, self.trust, self.momentum)
        return norm

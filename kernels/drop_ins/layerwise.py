"""LAMB and LARS over flat buffers: optimizers that scale each tensor's step by its norm.

The buffers are those of `FusedAdamEMA`; spans are the tensors' ranges in them. All scalars stay on
the device: a step can be captured in a CUDA graph, and a gradient that is not finite changes
nothing. Sums have a fixed order: equal bits from run to run.

LAMB: You et al. 2019, arXiv:1904.00962, algorithm 2, with bias correction.
LARS: You et al. 2017, arXiv:1708.03888, algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evofeed.base.errors import UnsupportedShape
from evofeed.kernels.ops.optimizer.op import FlatBuffers
from evofeed.kernels.runtime.private_apis import norms


class Span(NamedTuple):
    """One tensor's range in the flat buffers.

    Attributes:
        start, size: elements.
        adapted: True if its step is scaled by its norm and its weights decay; by convention
            False for biases and norms.
    """

    start: int
    size: int
    adapted: bool


def spans(tensors: Sequence[Tensor], align: int = 1) -> list[Span]:
    """Spans of consecutive tensors, each starting at a multiple of `align` elements.

    Tensors with fewer than two axes are not adapted.
    """
    result, start = [], 0
    for tensor in tensors:
        result.append(Span(start, tensor.numel(), tensor.dim() > 1))
        start += -(-tensor.numel() // align) * align
    return result


@dataclass(eq=False, repr=False)
class _Layerwise(FlatBuffers):
    """A flat optimizer whose steps are scaled tensor by tensor.

    Attributes:
        spans: range of each tensor in the buffers; see `spans`. Gaps do not change.
        weight_decay: of adapted tensors.
    """

    _: KW_ONLY
    spans: Sequence[Span]
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        spans, param = self.spans, self.param
        end = max((span.start + span.size for span in spans), default=0)
        if end > param.numel() or not spans:
            raise UnsupportedShape(
                f"the {len(spans)} spans reach to element {end} of {param.numel()}: "
                "give one span for each tensor in the buffers"
            )
        adapted = torch.tensor([float(span.adapted) for span in spans] + [0.0])
        span_index = torch.full(param.shape, len(spans), dtype=torch.int32)  # span of each element
        for n, span in enumerate(spans):
            span_index[span.start : span.start + span.size] = n
        self._span_index = span_index.to(param.device)
        self._adapted, self._inside = adapted.to(param.device), self._span_index < len(spans)
        self._decay = self.weight_decay * self._adapted[self._span_index]

    def _clipped(self) -> tuple[Tensor, Tensor, Tensor]:
        """Norm of the gradient, clipped gradient (0 if not finite), mask of weights to update."""
        norm: Tensor = torch.linalg.vector_norm(self.grad, dtype=torch.float32)
        finite = torch.isfinite(norm)
        self.updates.add_(finite)
        factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        return norm, torch.where(finite, self.grad.float() * factor, 0.0), self._inside & finite

    def _norms(self, x: Tensor) -> Tensor:
        """Norm of each tensor, and 0 for the gaps."""
        parts = [x[span.start : span.start + span.size] for span in self.spans]
        return torch.stack([*norms(parts), x.new_zeros(())])

    def _follow(self, moving: Tensor, ema: Tensor | None, low: Tensor | None) -> None:
        if ema is not None:
            ema.lerp_(self.param, (1 - self.ema_decay) * moving)
        if low is not None:
            low.copy_(torch.where(moving, self.param, low))


@dataclass(eq=False, repr=False)
class FusedLAMB(_Layerwise):
    """Clipped LAMB and the weights' moving average over flat buffers.

    Attributes:
        exp_avg, exp_avg_sq, ema, low, beta1, beta2, eps: as in `FusedAdamEMA`.
        weight_decay: part of the direction, as in the paper.
    """

    exp_avg: Tensor
    exp_avg_sq: Tensor
    ema: Tensor | None = None
    low: Tensor | None = None
    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6

    def step(self) -> Tensor:
        """Updates all buffers; returns the norm before clipping, a scalar on the device."""
        norm, grad, moving = self._clipped()
        self.exp_avg.lerp_(grad, (1 - self.beta1) * moving)
        self.exp_avg_sq.lerp_(grad.square(), (1 - self.beta2) * moving)
        updates = self.updates.clamp(min=1)  # without updates nothing moves
        first, second = ((1 - b**updates).float() for b in (self.beta1, self.beta2))
        move = self.exp_avg / first / ((self.exp_avg_sq / second).sqrt() + self.eps)
        move.addcmul_(self._decay, self.param)
        weights, steps = self._norms(self.param), self._norms(move)
        scaled = (self._adapted > 0) & (weights > 0) & (steps > 0)
        ratio = torch.where(scaled, weights / steps, 1.0)[self._span_index]
        self.param.sub_(torch.where(moving, self.rate * ratio * move, 0.0))
        self._follow(moving, self.ema, self.low)
        return norm


@dataclass(eq=False, repr=False)
class FusedLARS(_Layerwise):
    """Clipped LARS and the weights' moving average over flat buffers.

    Attributes:
        momentum_buffer: float32 `[N]`, zeros at first; it holds steps, the rate included.
        ema, low: as in `FusedAdamEMA`.
        momentum: fraction of the last step that is added.
        trust: trust coefficient, the paper's eta.
    """

    momentum_buffer: Tensor
    ema: Tensor | None = None
    low: Tensor | None = None
    _: KW_ONLY
    momentum: float = 0.9
    trust: float = 1e-3

    def step(self) -> Tensor:
        """Updates all buffers; returns the norm before clipping, a scalar on the device."""
        norm, grad, moving = self._clipped()
        weights, slopes = self._norms(self.param), self._norms(grad)
        scaled = (self._adapted > 0) & (weights > 0) & (slopes > 0)
        ratio = self.trust * weights / (slopes + self.weight_decay * weights)
        ratio = torch.where(scaled, ratio, 1.0)[self._span_index]
        move = self.rate * ratio * (grad + self._decay * self.param)
        after = torch.where(moving, self.momentum * self.momentum_buffer + move, 0.0)
        self.momentum_buffer.copy_(torch.where(moving, after, self.momentum_buffer))
        self.param.sub_(after)
        self._follow(moving, self.ema, self.low)
        return norm

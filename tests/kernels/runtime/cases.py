"""Every fused op with every optional input, at the smallest sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels import layer_norm, masked_softmax, pair_bias, template_attention
from evofeed.kernels.ops.adaptive_norm.op import AdaptiveWeights, adaptive_norm
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.ops.conditioned_attention.op import (
    ConditionedAttentionWeights,
    conditioned_attention,
)
from evofeed.kernels.ops.conditioned_transition.op import (
    ConditionedWeights,
    conditioned_transition,
)
from evofeed.kernels.ops.gated_attention.op import AttentionWeights, gated_attention
from evofeed.kernels.ops.global_attention.op import global_column_attention
from evofeed.kernels.ops.outer_product_mean.op import OuterWeights, outer_product_mean
from evofeed.kernels.ops.swiglu.op import SwigluWeights, swiglu_transition
from evofeed.kernels.ops.transition.op import TransitionWeights, transition
from evofeed.kernels.ops.triangle_multiplication.op import TriangleWeights, triangle_multiplication
from evofeed.kernels.ops.weighted_average.op import AverageWeights, weighted_average

S, R = 2, 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Case = tuple[Callable[..., Tensor], list[Tensor]]


def _linear(out: int, into: int) -> list[Tensor]:
    return [torch.randn(out, into) * into**-0.5, torch.randn(out)]


def _norm(C: int) -> list[Tensor]:
    return [1 + 0.1 * torch.randn(C), 0.1 * torch.randn(C)]


def _mask(*shape: int) -> Tensor:
    return (torch.rand(*shape, device=DEVICE) > 0.3).float()


def _gated(x: Tensor, pair: bool, **options: Any) -> Case:
    C, H, K = x.shape[-1], 2, 16
    weights = [
        *_norm(C),
        *(0.2 * torch.randn(K, C) for _ in range(4)),
        torch.randn(K),
        *_linear(C, K),
    ]
    inputs = [x, *weights, *([torch.randn(H, C)] if pair else [])]
    return lambda x, *w: gated_attention(x, AttentionWeights(*w), H, **options), inputs


def _triangle(**options: Any) -> Case:
    projections = [t for _ in range(4) for t in _linear(16, 32)]
    weights = _norm(32) + projections + _norm(16) + _linear(32, 16) + _linear(32, 32)
    return (
        lambda z, *w: triangle_multiplication(z, TriangleWeights(*w), outgoing=True, **options),
        [torch.randn(2, R, R, 32), *weights],
    )


def _transition(C: int, **options: Any) -> Case:
    weights = _norm(C) + _linear(2 * C, C) + _linear(C, 2 * C)
    return (
        lambda x, *w: transition(x, TransitionWeights(*w), **options),
        [torch.randn(2, R, C), *weights],
    )


def _outer(residual: bool) -> Case:
    weights = _norm(32) + _linear(16, 32) + _linear(16, 32) + _linear(16, 256)
    mask = _mask(1, S, R)
    return (
        lambda m, z, *w: outer_product_mean(m, OuterWeights(*w), mask, z=z if residual else None),
        [torch.randn(1, S, R, 32), torch.randn(1, R, R, 16), *weights],
    )


def _global(residual: bool) -> Case:
    C, K = 32, 16
    kv = [torch.randn(8, C) for _ in range(2)]
    weights = [*_norm(C), torch.randn(K, C), *kv, torch.randn(K, C), torch.randn(K), *_linear(C, K)]
    mask = _mask(1, S, R)
    return (
        lambda x, *w: global_column_attention(x, AttentionWeights(*w), 2, mask, residual=residual),
        [torch.randn(1, S, R, C), *weights],
    )


def _qkv() -> list[Tensor]:
    return [torch.randn(1, S, R, 2, 8) for _ in range(3)]


def _attention(mask: Tensor) -> Case:
    return lambda q, k, v, b: biased_attention(q, k, v, b, mask), [*_qkv(), torch.randn(1, 2, R, R)]


def _softmax(mask: Tensor) -> Case:
    inputs = [torch.randn(1, S, 2, R, R), torch.randn(1, 2, R, R)]
    return lambda x, bias: masked_softmax(x, mask, bias), inputs


def _templates(bias: Tensor | None) -> Case:
    inputs = [torch.randn(2, R, R, 16), *(torch.randn(2, S, R, R, 16) for _ in range(2))]
    return lambda q, k, v: template_attention(q, k, v, 2, bias), inputs


def _swiglu(C: int, mask: Tensor | None) -> Case:
    weights = [*_norm(C), *(torch.randn(2 * C, C) for _ in range(2)), torch.randn(C, 2 * C)]
    return (
        lambda x, *w: swiglu_transition(x, SwigluWeights(*w), mask=mask, residual=mask is not None),
        [torch.randn(2, R, C), *weights],
    )


def _average() -> Case:
    weights = [*_norm(16), *(torch.randn(16, 16) for _ in range(3))]
    shares = torch.softmax(torch.randn(1, 2, R, R), -1)
    return (
        lambda m, shares, *w: weighted_average(m, shares, AverageWeights(*w)),
        [torch.randn(1, S, R, 16), shares, *weights],
    )


def _adaptive() -> Case:
    layers = [torch.randn(16, 24), torch.randn(16), torch.randn(16, 24)]
    return (
        lambda a, s, *w: adaptive_norm(a, s, AdaptiveWeights(*w)),
        [torch.randn(2, R, 16), torch.randn(2, R, 24), torch.randn(24), *layers],
    )


def _conditioned(third: bool, mask: Tensor | None) -> Case:
    sides = [(16, 24), (16,), (16, 24), *[(32, 16)] * 2, (16, 32), (16, 24), (16,)]
    layers = [0.2 * torch.randn(side) for side in [*sides, *[(32, 16)] * third]]
    return (
        lambda a, s, *w: conditioned_transition(
            a, s, ConditionedWeights(*w), mask=mask, residual=mask is not None
        ),
        [torch.randn(2, R, 16), torch.randn(2, R, 24), torch.randn(24), *layers],
    )


def _tokens(conditioned: bool) -> Case:
    """With everything, or with nothing that may be None."""
    mask = _mask(1, S, R) if conditioned else None
    core = [(32, 16), (32,), *[(32, 16)] * 3, (16, 32)]
    of_s = [(16, 24), (16,), (16, 24), (16, 24), (16,)]
    sides = core + of_s if conditioned else [*core, (16,)]
    weights = [0.2 * torch.randn(side) for side in sides]
    given = [torch.randn(1, S, R, 16), torch.randn(24 if conditioned else 16), *weights]

    def call(a: Tensor, norm: Tensor, *rest: Tensor) -> Tensor:
        if not conditioned:
            return conditioned_attention(a, None, ConditionedAttentionWeights(norm, *rest), 2)
        *rest, s, bias = rest
        w = ConditionedAttentionWeights(norm, *rest[:6], None, *rest[6:])
        return conditioned_attention(a, s, w, 2, bias=bias, mask=mask, residual=True)

    more = [torch.randn(1, S, R, 24), torch.randn(1, 2, R, R)] if conditioned else []
    return call, [*given, *more]


CASES: dict[str, Callable[[], Case]] = {
    "layer norm": lambda: (layer_norm, [torch.randn(3, 16), *_norm(16)]),
    "layer norm of a view": lambda: (
        lambda x, w, b: layer_norm(x.transpose(0, 1), w, b), [torch.randn(3, 5, 64), *_norm(64)],
    ),
    "softmax": lambda: (masked_softmax, [torch.randn(1, S, 2, R, R)]),
    "softmax, mask and bias": lambda: _softmax(_mask(1, S, R)),
    "attention": lambda: (biased_attention, _qkv()),
    "attention, mask and bias": lambda: _attention(_mask(1, S, R)),
    "templates": lambda: _templates(None),
    "templates, bias": lambda: _templates(_mask(2, S)),
    "gated": lambda: _gated(torch.randn(1, S, R, 32), False),
    "gated, columns": lambda: _gated(
        torch.randn(1, S, R, 32), False, columns=True, residual=True, mask=_mask(1, S, R),
        drop_mask=_mask(1, S, 32), drop_columnwise=True,
    ),
    "gated, bias": lambda: _gated(
        torch.randn(1, S, R, 32), False, bias=torch.randn(1, 2, R, R, device=DEVICE), residual=True
    ),
    "gated, own pairs": lambda: _gated(
        torch.randn(1, R, R, 32), True, mask=_mask(1, R, R), drop_mask=_mask(1, R, 32)
    ),
    "triangle": _triangle,
    "triangle, all": lambda: _triangle(
        mask=_mask(2, R, R), residual=True, drop_mask=_mask(2, R, 32)
    ),
    "transition": lambda: _transition(16),
    "transition, residual": lambda: _transition(16, residual=True),
    "transition, wide": lambda: _transition(256, mask=_mask(2, R)),
    "swiglu": lambda: _swiglu(16, None),
    "swiglu, all": lambda: _swiglu(24, _mask(2, R)),
    "swiglu, wide": lambda: _swiglu(256, _mask(2, R)),
    "average": _average,
    "adaptive norm": _adaptive,
    "conditioned": lambda: _conditioned(True, None),
    "conditioned, all": lambda: _conditioned(False, _mask(2, R)),
    "tokens": lambda: _tokens(False),
    "tokens, conditioned": lambda: _tokens(True),
    "outer": lambda: _outer(False),
    "outer, residual": lambda: _outer(True),
    "pair bias": lambda: (
        lambda z, *w: pair_bias(z, *w, scale=2.0),
        [torch.randn(2, R, R, 16), *_norm(16), torch.randn(2, 16)],
    ),
    "global": lambda: _global(False),
    "global, residual": lambda: _global(True),
}  # fmt: skip

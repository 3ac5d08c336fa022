"""Parameters of AF2's modules and the axes of their inputs, as the fused ops take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.runtime.private_apis import is_of_several
from evofeed.kernels.swap.forms import has


def attention_weights(norm: Any, mha: Any, pair: Tensor | None = None) -> AttentionWeights:
    """Parameters of a norm and an attention module, by OpenFold's names."""
    return AttentionWeights(
        norm.weight, norm.bias, mha.linear_q.weight, mha.linear_k.weight, mha.linear_v.weight,
        mha.linear_g.weight, mha.linear_g.bias, mha.linear_o.weight, mha.linear_o.bias, pair,
    )  # fmt: skip


def halves(weight: Any) -> Any:
    """Both halves of a parameter; it twice if it is None, or quantised: no op will take it then."""
    if weight is None or is_of_several(weight):
        return weight, weight
    return weight.chunk(2)


def triangle_weights(module: Any) -> TriangleWeights:
    """Parameters of a triangle multiplication, also of one whose a and b share a matrix."""
    if has(module, "linear_ab_p"):
        p, g = module.linear_ab_p, module.linear_ab_g
        both = map(halves, (p.weight, p.bias, g.weight, g.bias))
        parts: list[Any] = [t for half in zip(*both, strict=True) for t in half]
    else:
        layers = (module.linear_a_p, module.linear_a_g, module.linear_b_p, module.linear_b_g)
        parts = [t for layer in layers for t in (layer.weight, layer.bias)]
    into, out = module.layer_norm_in, module.layer_norm_out
    return TriangleWeights(  # type: ignore[call-arg]
        into.weight, into.bias, *parts, out.weight, out.bias, module.linear_z.weight,
        module.linear_z.bias, module.linear_g.weight, module.linear_g.bias,
    )  # fmt: skip


def transition_weights(module: Any) -> TransitionWeights:
    """Parameters of an MSA or pair transition."""
    norm, first, second = module.layer_norm, module.linear_1, module.linear_2
    return TransitionWeights(
        norm.weight, norm.bias, first.weight, first.bias, second.weight, second.bias
    )


def outer_weights(module: Any) -> OuterWeights:
    """Parameters of an outer product mean."""
    norm, a, b, out = module.layer_norm, module.linear_1, module.linear_2, module.linear_out
    return OuterWeights(
        norm.weight, norm.bias, a.weight, a.bias, b.weight, b.bias, out.weight, out.bias
    )


def four_axes(x: Tensor) -> Tensor:
    """`[B, I, J, C]` view of `[..., I, J, C]`; x itself where it is that: a view costs 10 us."""
    return x if x.dim() == 4 else x.reshape(-1, *x.shape[-3:])


def three_axes(mask: Tensor | None, of: Tensor | None = None) -> Tensor | None:
    """`[B, I, J]` view of `[..., I, J]`, or None; broadcast to the positions `of` a tensor."""
    if mask is not None and of is not None and mask.shape != of.shape[:-1]:
        mask = mask.expand(of.shape[:-1])
    if mask is None or mask.dim() == 3:
        return mask
    return mask.reshape(-1, *mask.shape[-2:])


def alike(a: Tensor, s: Tensor | None) -> bool:
    """Whether both are of one type, or autocast makes them so; else PyTorch's rules decide."""
    return s is None or a.dtype is s.dtype or torch.is_autocast_enabled(a.device.type)


def spreads(part: torch.Size, whole: torch.Size) -> bool:
    """Whether sizes can be expanded to those of the whole."""
    if part == whole:
        return True
    missing = len(whole) - len(part)
    return missing >= 0 and all(a in (1, b) for a, b in zip(part, whole[missing:], strict=True))


def within(mask: Tensor | None, x: Tensor) -> bool:
    """Whether a mask is of the positions of x or fewer, and no gradient of it is wanted.

    A larger one makes the result larger.
    """
    return mask is None or (not mask.requires_grad and spreads(mask.shape, x.shape[:-1]))


def covers(mask: Tensor | None, m: Tensor) -> bool:
    """Whether a mask has every sequence and position of an MSA: broadcast, it would count fewer."""
    return mask is None or (mask.shape[-2:] == m.shape[-3:-1] and within(mask, m))


def shaped(x: Tensor, like: Tensor) -> Tensor:
    """x with the leading axes of `like`."""
    return x if x.dim() == like.dim() else x.view(like.shape)


def pair_layer(module: Any) -> Any:
    """What makes a triangle attention's bias (OpenFold3: `linear_z`)."""
    return module.linear if hasattr(module, "linear") else module.linear_z

"""Parameters of modules and the axes of their inputs, as the fused ops take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.runtime.private_apis import is_wrapper_subclass


def attention_weights(norm: Any, mha: Any, pair: Tensor | None = None) -> AttentionWeights:
    """Parameters of a norm and an attention module, by OpenFold's names."""
    return AttentionWeights(
        norm.weight, norm.bias, mha.linear_q.weight, mha.linear_k.weight, mha.linear_v.weight,
        mha.linear_g.weight, mha.linear_g.bias, mha.linear_o.weight, mha.linear_o.bias, pair,
    )  # fmt: skip


def halves(weight: Any) -> Any:
    """Both halves of a parameter; it twice if it is None, or quantised: no op will take it then."""
    if weight is None or is_wrapper_subclass(weight):
        return weight, weight
    return weight.chunk(2)


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

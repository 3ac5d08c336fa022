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
    """Both halves of a parameter; twice the parameter if no op takes it (None or quantised)."""
    if weight is None or is_wrapper_subclass(weight):
        return weight, weight
    return weight.chunk(2)


def four_axes(x: Tensor) -> Tensor:
    """`[B, I, J, C]` view of `[..., I, J, C]`; x itself if it has four axes: a view costs 10 us."""
    return x if x.dim() == 4 else x.reshape(-1, *x.shape[-3:])


def three_axes(mask: Tensor | None, like: Tensor | None = None) -> Tensor | None:
    """`[B, I, J]` view of `[..., I, J]`, or None; broadcast to the positions of `like`."""
    if mask is not None and like is not None and mask.shape != like.shape[:-1]:
        mask = mask.expand(like.shape[:-1])
    if mask is None or mask.dim() == 3:
        return mask
    return mask.reshape(-1, *mask.shape[-2:])


def same_dtype(a: Tensor, s: Tensor | None) -> bool:
    """True if both have one dtype, or autocast casts them; else PyTorch's promotion decides."""
    return s is None or a.dtype is s.dtype or torch.is_autocast_enabled(a.device.type)


def expands_to(sizes: torch.Size, full: torch.Size) -> bool:
    """True if sizes can be expanded to the full ones."""
    if sizes == full:
        return True
    missing = len(full) - len(sizes)
    return missing >= 0 and all(a in (1, b) for a, b in zip(sizes, full[missing:], strict=True))


def mask_fits(mask: Tensor | None, x: Tensor) -> bool:
    """True if a mask can be expanded to the positions of x, and needs no gradient.

    A larger mask would make the result larger.
    """
    return mask is None or (not mask.requires_grad and expands_to(mask.shape, x.shape[:-1]))


def covers(mask: Tensor | None, m: Tensor) -> bool:
    """True if a mask has every sequence and position of an MSA: broadcast, it would count fewer."""
    return mask is None or (mask.shape[-2:] == m.shape[-3:-1] and mask_fits(mask, m))


def shaped(x: Tensor, like: Tensor) -> Tensor:
    """x with the leading axes of `like`."""
    return x if x.dim() == like.dim() else x.view(like.shape)

"""`nn.MultiheadAttention` without its copies.

PyTorch's forward splits the packed projection with a copy of q, k and v, and in
`batch_first` mode goes through a transposed layout. Here q, k and v stay views of
the projection's result, which `scaled_dot_product_attention` reads directly.
The products and the attention itself are PyTorch's own (cuBLAS; cuDNN or flash):
on an H200 no fused kernel here is faster without a pair bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, drop_in
from evofeed.kernels.runtime.backend import usable


class FusedMultiheadAttention(Fused):
    """Forward of a swapped `nn.MultiheadAttention`."""

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs without copies; calls that return weights or are unusual run the original."""
        if need_weights or not _fits(self, (query, key, value), key_padding_mask, attn_mask):
            return super().forward(  # type: ignore[misc,no-any-return]
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        q, k, v = (_heads(part, self) for part in _project(self, query, key, value))
        # A causal mask without another mask is a hint that it need not be read (as in PyTorch).
        causal = is_causal and attn_mask is not None and key_padding_mask is None
        mask = None
        if attn_mask is not None and not causal:  # [L, S], or [batch * heads, L, S]
            added = _additive(attn_mask, q.dtype)
            mask = added.view(-1, q.shape[1] if added.dim() == 3 else 1, *added.shape[-2:])
        if key_padding_mask is not None:
            keys = _additive(key_padding_mask, q.dtype)[:, None, None, :]
            mask = keys if mask is None else mask + keys
        mask = None if mask is None else mask.expand(*q.shape[:3], -1)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        out = out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)
        # With the layer's weights, as in PyTorch: hooks on the layer do not fire there either.
        return F.linear(out.flatten(2), self.out_proj.weight, self.out_proj.bias), None


def _fits(
    module: Any, inputs: tuple[Tensor, ...], padding: Tensor | None, mask: Tensor | None
) -> bool:
    """True if the call is usual, and the masks cause none of PyTorch's warnings or errors."""
    (query, key, value), masks = inputs, [m for m in (padding, mask) if m is not None]
    # PyTorch's inference path, which without a mask is as fast or faster: on an H200,
    # 8 x 128 x 256, 80 us of wall time against 110.
    plain = query is key is value and not (masks or module.training or torch.is_grad_enabled())
    return (
        usable(query)  # also the same strides, so the same dropout
        and not plain
        and all(t.dim() == 3 and not t.is_nested for t in inputs)
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
        and (padding is None or padding.dim() == 2)
        and (mask is None or mask.dim() in (2, 3))
        and all(m.dtype is torch.bool or m.is_floating_point() for m in masks)
        and len({m.dtype for m in masks}) <= 1
    )


def _project(module: Any, query: Tensor, key: Tensor, value: Tensor) -> Iterable[Tensor]:
    """q, k, v: views of one product if the three inputs are the same tensor."""
    weight, bias = module.in_proj_weight, module.in_proj_bias
    if query is key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return map(F.linear, (query, key, value), weight.chunk(3), biases)


def _heads(x: Tensor, module: Any) -> Tensor:
    """`[batch, heads, length, width]` view of `[batch, length, E]`, or `[length, batch, E]`."""
    split = x.view(*x.shape[:2], module.num_heads, module.head_dim)
    return split.transpose(1, 2) if module.batch_first else split.permute(1, 2, 0, 3)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is torch.bool:
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return zeros.masked_fill_(mask, float("-inf"))
    return mask.to(dtype)


@drop_in
class MultiheadAttention(FusedMultiheadAttention, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with fewer copies: same arguments, parameters and results.

    Pass `need_weights=False`: PyTorch's default returns the weights and is slow, here too.
    """

    torch_class = nn.MultiheadAttention
    mixin = FusedMultiheadAttention


def rule(module: nn.Module) -> type[Fused] | str | None:
    """The fused class for a module, the reason to keep the module, or None."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    cls = type(module)
    if cls.forward is not nn.MultiheadAttention.forward:
        return f"{cls.__name__} overrides nn.MultiheadAttention.forward"
    return FusedMultiheadAttention

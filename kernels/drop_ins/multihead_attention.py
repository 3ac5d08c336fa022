"""`nn.MultiheadAttention` without its copies.

PyTorch's forward splits the packed projection with a copy of q, k and v, and in
`batch_first` mode walks through a transposed layout. Here q, k and v stay views of
the projection's result, which `scaled_dot_product_attention` reads as they are.
The products and the attention itself are PyTorch's own (cuBLAS; cuDNN or flash):
on an H200 nothing of ours beats them without a pair bias.
"""

from __future__ import annotations

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
        """As the original's; what returns weights or is unusual goes to the original."""
        masks = (key_padding_mask, attn_mask)
        plain = key_padding_mask is None and attn_mask is None
        if (
            need_weights
            or not usable(query)  # also the same strides, so the same dropout
            or (plain and _torch_has_a_kernel(self, query, key, value))
            or not _fits(self, query, key, value)
            or not (plain or _masks_agree(*masks))
        ):
            return super().forward(  # type: ignore[misc,no-any-return]
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        q, k, v = (_heads(part, self) for part in _project(self, query, key, value))
        # A causal mask beside no other is a hint that it need not be read (as in PyTorch).
        causal = is_causal and attn_mask is not None and key_padding_mask is None
        mask = None if causal else _added_mask(*masks, q)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        out = out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)
        # By its weights, as PyTorch does: hooks on this layer do not fire there either.
        return F.linear(out.flatten(2), self.out_proj.weight, self.out_proj.bias), None


def _fits(module: Any, query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        query.dim() == key.dim() == value.dim() == 3
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
        and not (query.is_nested or key.is_nested or value.is_nested)
    )


def _torch_has_a_kernel(module: Any, query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether PyTorch's inference path runs, which without a mask is as fast or faster.

    On an H200, 8 x 128 x 256: 80 us of wall time against 110; large inputs are equal. With a
    padding mask it takes twice as long as this one.
    """
    return (
        not module.training
        and query is key
        and key is value
        and module.batch_first
        and not torch.is_grad_enabled()
        and module.in_proj_bias is not None
        and module.num_heads % 2 == 0
        and query.dtype is module.in_proj_weight.dtype
        and not torch.is_autocast_enabled(query.device.type)
    )


def _masks_agree(padding: Tensor | None, mask: Tensor | None) -> bool:
    """Whether the masks need none of PyTorch's warnings or errors."""
    if padding is not None and padding.dim() != 2:
        return False
    if mask is not None and mask.dim() not in (2, 3):
        return False
    present = [m for m in (padding, mask) if m is not None]
    known = all(m.dtype is torch.bool or m.is_floating_point() for m in present)
    return known and len({m.dtype for m in present}) <= 1


def _project(
    module: Any, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v: views of one product where the three inputs are one."""
    weight, bias = module.in_proj_weight, module.in_proj_bias
    if query is key and key is value:
        q, k, v = F.linear(query, weight, bias).chunk(3, -1)
        return q, k, v
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    each = zip((query, key, value), weight.chunk(3), biases, strict=True)
    q, k, v = (F.linear(x, own, of_x) for x, own, of_x in each)
    return q, k, v


def _heads(x: Tensor, module: Any) -> Tensor:
    """`[batch, heads, length, width]` view of `[batch, length, E]`, or `[length, batch, E]`."""
    split = x.view(*x.shape[:2], module.num_heads, module.head_dim)
    return split.transpose(1, 2) if module.batch_first else split.permute(1, 2, 0, 3)


def _added_mask(padding: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as one tensor to add to the logits, in q's dtype, or None."""
    added = None
    if mask is not None:
        three = mask.dim() == 3  # [batch * heads, L, S]
        added = _additive(mask, q.dtype)
        added = added.view(*q.shape[:2], *added.shape[-2:]) if three else added[None, None]
    if padding is not None:
        columns = _additive(padding, q.dtype)[:, None, None, :]
        added = columns if added is None else added + columns
    return None if added is None else added.expand(*q.shape[:3], -1)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
            mask, float("-inf")
        )
    return mask.to(dtype)


@drop_in
class MultiheadAttention(FusedMultiheadAttention, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with fewer copies: same arguments, parameters and results.

    Pass `need_weights=False`: PyTorch's default returns the weights and is slow, here too.
    """

    torch_class = nn.MultiheadAttention
    mixin = FusedMultiheadAttention


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    cls = type(module)
    if cls.forward is not nn.MultiheadAttention.forward:
        return f"{cls.__name__} overrides nn.MultiheadAttention.forward"
    return FusedMultiheadAttention

"""Attention of every pair to the templates at that pair, between its projections.

Four keys a query are too few for products of tensor cores: in PyTorch they are a dozen launches
that write numbers as large as keys and values again and again.

Letters: B batch, M pairs of a sample, T templates, H heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.template_attention import reference
from evofeed.kernels.ops.template_attention.triton import (
    template_attention_grad_kernel,
    template_attention_kernel,
)
from evofeed.kernels.runtime.backend import launchable, triton, usable
from evofeed.kernels.runtime.checks import Made, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.torch_library import Given, Kinds, Operator, Results

NUMBERS, WARPS = 2048, 4  # numbers of a query's tile: 16 of 128 threads each


def _sizes(q: Tensor, k: Tensor, heads: int) -> tuple[tuple[int, int], list[Any], dict[str, Any]]:
    """Grid, sizes and scale, and what is compiled for."""
    (B, M, width), T = q.shape, k.shape[1]
    rows = max(1, NUMBERS // width)
    meta = {"H": heads, "D": width // heads, "BLOCK_M": rows, "num_warps": WARPS}
    return (triton.cdiv(M, rows), B), [M, T, float((width // heads) ** -0.5)], meta


class _TemplateAttention(Operator, name="template_attention"):
    options = "int heads"
    kept = (0, 1, 2, 3)
    keeps_result = True

    @staticmethod
    def forward(tensors: Given, heads: int) -> Results:
        q, k, v, bias = tensors
        out = torch.empty_like(q)
        lse = q.new_empty((*q.shape[:2], heads), dtype=torch.float32)
        grid, sizes, meta = _sizes(q, k, heads)
        launch(
            template_attention_kernel, grid, (q, k, v, bias, out, lse, *sizes),
            {"HAS_BIAS": bias is not None, **meta},
        )  # fmt: skip
        return [out, lse]

    @staticmethod
    def backward(tensors: Given, heads: int) -> Results:
        dout, q, k, v, bias, out, lse = tensors
        found = [torch.empty_like(t) for t in (q, k, v)]
        grid, sizes, meta = _sizes(q, k, heads)
        launch(
            template_attention_grad_kernel, grid,
            (dout.contiguous(), out, lse, q, k, v, bias, *found, *sizes),
            {"HAS_BIAS": bias is not None, **meta},
        )  # fmt: skip
        return found

    @staticmethod
    def gradients(grad: Tensor, found: Given, kinds: Kinds, *options: Any) -> Results:
        return [*found, None]


def template_attention_fits(x: Tensor, templates: int, heads: int, head_width: int) -> bool:
    """Whether the kernels take queries made from x: heads and their width powers of two."""
    powers = heads & (heads - 1) == 0 and head_width & (head_width - 1) == 0
    sizes = templates > 0 and heads * head_width <= NUMBERS and x.numel() > 0
    return powers and sizes and x.dtype is not torch.float64 and usable(x)


@falls_back_to(reference.template_attention)
def template_attention(
    q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor | None = None
) -> Made:
    """Every pair attends, head by head, to the T templates at its place.

    Args:
        q: `[*B, I, R, H * D]`, not yet scaled.
        k: `[*B, T, I, R, H * D]`, in q's type.
        v: likewise.
        heads: H.
        bias: `[*B, T]`, added to the logits, without a gradient, or None.

    Returns:
        As q; weights are float32 inside.
    """
    *leading, rows, R, width = q.shape
    T = k.shape[-4]
    check_shape("template_attention", "k", k, *leading, T, rows, R, width)
    check_shape("template_attention", "v", v, *leading, T, rows, R, width)
    check_shape("template_attention", "bias", bias, *leading, T)
    fits = template_attention_fits(q, T, heads, width // heads)
    if not (fits and k.dtype is v.dtype is q.dtype and launchable(q, k, v, bias)):
        return None
    M = rows * R
    keys, values = (t.reshape(-1, T, M, width) for t in (k, v))
    bias = None if bias is None else bias.reshape(-1, T).contiguous()
    out = _TemplateAttention.apply((heads,), q.reshape(-1, M, width), keys, values, bias)
    return out.view(q.shape)

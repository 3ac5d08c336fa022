"""Global column attention of the extra MSA stack: one query a column and head.

The query is a projection of the masked mean of the column's normalised sequences; keys and
values are shared by all heads. Source: AF2 SI algorithm 19.

Letters: B batch, S sequences, R residues, C channels, H heads, D head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.ops.attention.triton import LOG2E
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.gated_attention.triton import gated_output_kernel
from evofeed.kernels.ops.global_attention import reference
from evofeed.kernels.ops.global_attention.triton import (
    attend_grad_kernel,
    attend_kernel,
    gated_broadcast_grad_kernel,
    pool_grad_kernel,
    pool_kernel,
)
from evofeed.kernels.ops.layer_norm.op import layer_norm
from evofeed.kernels.runtime.backend import (
    compute_dtype,
    launchable,
    sm_count,
    triton,
    without_autocast,
)
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import pack, padded, precision, project
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

BLOCK_S = 128
ROWS = 64


class _Plan(NamedTuple):
    """Options of one call."""

    heads: int
    eps: float
    residual: bool
    dtype: torch.dtype


class _GlobalColumnAttention(Operator, name="global_column_attention"):
    options = "int heads, float eps, bool residual, ScalarType dtype"
    saved_inputs = (0, 2, 7)  # xn, mask, g_bias

    @staticmethod
    def forward(tensors: Tensors, *options: Any) -> Results:
        plan = _Plan(*options)
        xn, x, mask, q, k, v, g, g_bias, o, o_bias = tensors
        B, S, R, C = xn.shape
        K, H = q.shape[0], plan.heads
        packed = pack([g, k, v], plan.dtype)
        gkv = project(xn.view(-1, C), packed)
        count = mask.sum(1, dtype=torch.float32)
        share = 1 / (count[..., None] + plan.eps)
        mean = (_pooled(xn, mask) * share).to(plan.dtype)
        wq = q.to(plan.dtype)
        query = project(mean.view(-1, C), wq).view(B, R, H, -1)
        attended, lse = torch.empty_like(query), xn.new_empty((B, R, H), dtype=torch.float32)
        launch(
            attend_kernel, (R, B),
            (query, gkv[:, K:], gkv[:, K + K // H :], mask, count, attended, lse,
             S, R, H, gkv.stride(0), (K // H) ** -0.5 * LOG2E),
            _column_tile(query),
        )  # fmt: skip
        wo = o.to(plan.dtype).contiguous()
        out = torch.empty_like(x)
        M = B * S * R
        launch(
            gated_output_kernel, (triton.cdiv(M, ROWS),),
            (attended, gkv, g_bias, wo, o_bias, None, x, out, M, K, C, gkv.stride(0), 1, 1, 1,
             S * R, R),
            {"BLOCK_M": ROWS, "BLOCK_K": padded(K), "BLOCK_N": padded(C), "HAS_DROP": False,
             "HAS_RES": plan.residual, "OF_RESIDUE": True, "PRECISION": precision(plan.dtype),
             "num_warps": 4},
        )  # fmt: skip
        return [out, packed, gkv, count, share, mean, wq, query, attended, lse, wo]

    @staticmethod
    def backward(tensors: Tensors, *options: Any) -> Results:
        plan = _Plan(*options)
        (
            dout, xn, mask, g_bias, packed, gkv, count, share, mean, wq, query, attended, lse, wo,
        ) = tensors  # fmt: skip
        B, S, R, C = xn.shape
        H, D = query.shape[2:]
        K = H * D
        dout = dout.contiguous()
        dgkv = torch.empty_like(gkv)
        gated = gkv.new_empty((B * S * R, K))
        seqs = _seqs_each(dout, B, S, triton.cdiv(R, ROWS))
        partial = dout.new_empty((triton.cdiv(S, seqs), B, R, K), dtype=torch.float32)
        grid = (triton.cdiv(R, ROWS), partial.shape[0], B)
        sums = dout.new_empty((grid[0] * grid[1] * B, K + C), dtype=torch.float32)
        launch(
            gated_broadcast_grad_kernel, grid,
            (dout, wo, attended, gkv, g_bias, dgkv, gated, partial, sums, S, R, K, C, gkv.stride(0),
             dgkv.stride(0), seqs),
            {"BLOCK_R": ROWS, "BLOCK_K": padded(K), "BLOCK_N": padded(C),
             "PRECISION": precision(plan.dtype), "num_warps": 8},
        )  # fmt: skip
        do = partial.sum(0).to(plan.dtype)
        dquery = torch.empty_like(query)
        launch(
            attend_grad_kernel, (R, B),
            (query, gkv[:, K:], gkv[:, K + D :], mask, count, attended, lse, do, dquery,
             dgkv[:, K:], dgkv[:, K + D :], S, R, H, gkv.stride(0), dgkv.stride(0),
             D**-0.5 * LOG2E, D**-0.5),
            _column_tile(query),
        )  # fmt: skip
        dquery = dquery.view(-1, K)
        dmean = torch.mm(dquery, wq).view(B, R, C) * share
        dxn = torch.mm(dgkv, packed).view(xn.shape)
        launch(
            pool_grad_kernel, (triton.cdiv(R, ROWS), S, B), (dxn, mask, dmean, S, R, C),
            {"BLOCK_R": ROWS, "BLOCK_C": padded(C), "num_warps": 4},
        )  # fmt: skip
        dpacked = torch.mm(dgkv.t(), xn.view(-1, C))
        flat = dout.view(-1, C).to(plan.dtype)
        dq, dwo = torch.mm(dquery.t(), mean.view(-1, C)), torch.mm(flat.t(), gated)
        dg, dk, dv = torch.split(dpacked, [K, D, D])
        dg_bias, do_bias = torch.split(column_sums([sums], torch.float32)[0], [K, C])
        residual = dout if plan.residual else None
        return [dxn, residual, None, dq, dk, dv, dg, dg_bias, dwo, do_bias]


def _pooled(xn: Tensor, mask: Tensor) -> Tensor:
    """Sum over sequences of xn * mask, `[B, R, C]` float32."""
    B, S, R, C = xn.shape
    rows = max(1, 4096 // padded(C))
    seqs = _seqs_each(xn, B, S, triton.cdiv(R, rows))
    partial = xn.new_empty((triton.cdiv(S, seqs), B, R, C), dtype=torch.float32)
    launch(
        pool_kernel, (triton.cdiv(R, rows), partial.shape[0], B),
        (xn, mask, partial, S, R, C, seqs),
        {"BLOCK_R": rows, "BLOCK_C": padded(C), "num_warps": 4},
    )  # fmt: skip
    return partial.sum(0)


def _seqs_each(x: Tensor, B: int, S: int, tiles: int) -> int:
    """Sequences of a program, for about eight programs a multiprocessor."""
    return max(1, int(triton.cdiv(S * B * tiles, 8 * sm_count(x))))


def _column_tile(query: Tensor) -> dict[str, Any]:
    H, D = query.shape[2:]
    return {
        "D": D, "BLOCK_D": padded(D), "BLOCK_H": padded(H), "BLOCK_S": BLOCK_S,
        "PRECISION": precision(query.dtype), "num_warps": 4,
    }  # fmt: skip


def global_attention_fits(x: Tensor, weights: AttentionWeights, heads: int) -> bool:
    """True if the fused op takes this input: at most 256 channels, a head width up to 64."""
    K, C = weights.q.shape
    return x.dim() == 4 and max(K, C) <= 256 and K // heads <= 64 and weights.readable(x)


@falls_back_to(reference.global_column_attention)
def global_column_attention(
    x: Tensor, weights: AttentionWeights, heads: int, mask: Tensor, *, residual: bool,
    norm_eps: float, eps: float,
) -> FusedResult:  # fmt: skip
    """Attention with a query a column and head, the mean of its sequences; heads share k and v."""
    (B, S, R, C), op = x.shape, "global_column_attention"
    check_shape(op, "weights.q", weights.q, weights.q.shape[0], C)
    check_shape(op, "mask", mask, B, S, R)
    if not (global_attention_fits(x, weights, heads) and launchable(x, weights.q, mask)):
        return None
    dtype = compute_dtype(x)
    w = weights
    with without_autocast(x):
        x = x.contiguous()
        xn = layer_norm(x.to(dtype), w.norm_weight, w.norm_bias, norm_eps)
        return _GlobalColumnAttention.apply(
            _Plan(heads, eps, residual, dtype), xn, x, mask.contiguous(), w.q, w.k, w.v, w.g,
            w.g_bias, w.o, w.o_bias,
        )  # fmt: skip

"""Outer product mean as one op: norm, projections, outer GEMM, projection, mean, residual.

The outer product of all pairs (134 MB at 256 residues) is written once by a
GEMM and read where it lies; the backward pass rebuilds it instead of keeping it.

Letters: B batch, S sequences, R residues, M = B * S * R, C channels of the MSA,
E channels of a projection, N channels of the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.backend import compute_dtype, sm_count, triton, usable
from evofeed.kernels.choices import tile
from evofeed.kernels.library import operator
from evofeed.kernels.outer_kernels import (
    outer_dproject_kernel,
    outer_dw_kernel,
    outer_project_kernel,
)
from evofeed.kernels.projection import (
    linear_dw,
    norm_rows,
    norm_rows_grad,
    pack,
    padded,
    precision,
    project,
)
from evofeed.kernels.projection_kernels import sum_splits_kernel

__all__ = ["OuterWeights", "outer_product_mean", "outer_product_mean_fits"]


@dataclass(frozen=True, slots=True)
class OuterWeights:
    """Parameters of one outer product mean, as OpenFold names them."""

    norm_weight: Tensor
    norm_bias: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    out: Tensor
    out_bias: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order the autograd function takes them."""
        return tuple(getattr(self, name) for name in self.__slots__)


def _outer(ab: Tensor, B: int, S: int) -> Tensor:
    """`[B, R * E, R * E]`: sum over sequences of the products of all columns."""
    a, b = ab.view(2, B, S, -1)
    return torch.bmm(a.mT, b)


def _masked(ab: Tensor, mask: Tensor, rows_first: bool = False) -> Tensor:
    """`ab` times the mask `[M]` of its rows, in memory in the order of its axes."""
    out = torch.empty(ab.shape, dtype=ab.dtype, device=ab.device)
    factor = mask[:, None, None] if rows_first else mask[None, :, None]
    return torch.mul(ab, factor.to(ab.dtype), out=out)


def _options(op: str, N: int, dtype: torch.dtype) -> dict[str, Any]:
    block = tile(op, N, dtype)
    return {
        "BLOCK_J": block.rows, "BLOCK_N": padded(N), "PRECISION": precision(dtype),
        "num_warps": block.warps, "num_stages": block.stages,
    }  # fmt: skip


@operator("outer_product_mean")
class _OuterProductMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, m: Tensor, mask: Tensor, z: Tensor | None, eps: float, norm_eps: float,
        dtype: torch.dtype, *weights: Tensor,
    ) -> Tensor:  # fmt: skip
        w = OuterWeights(*weights)
        B, S, R, C = m.shape
        E, N = w.w1.shape[0], w.out.shape[0]
        packed_w, packed_b = pack([w.w1, w.w2], dtype), torch.cat([w.b1, w.b2])
        rows = mask.reshape(-1)
        normed, stats, _ = norm_rows(m.view(-1, C), w.norm_weight, w.norm_bias, norm_eps, dtype)
        ab = _masked(project(normed, packed_w, packed_b).view(-1, 2, E).transpose(0, 1), rows)
        counts = mask.float()
        norm = torch.bmm(counts.mT, counts) + eps
        # [(c, e), n], so that neighbours in memory are neighbours in n
        out_w = pack([w.out.t()], dtype)
        out = torch.empty((B, R, R, N), dtype=m.dtype if z is None else z.dtype, device=m.device)
        options = _options("outer_project", N, dtype)
        outer_project_kernel[(triton.cdiv(R, options["BLOCK_J"]), R, B)](
            _outer(ab, B, S), out_w, w.out_bias, norm, z, out, R, N, E=E,
            HAS_RES=z is not None, **options,
        )  # fmt: skip
        ctx.save_for_backward(m, rows, w.norm_weight, w.norm_bias, packed_w, out_w, ab, norm, stats)
        ctx.residual, ctx.dtypes = z is not None, [t.dtype for t in weights]
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        m, mask, gamma, beta, packed_w, out_w, ab, norm, stats = ctx.saved_tensors
        B, S, R, C = m.shape
        E, N = packed_w.shape[0] // 2, out_w.shape[1]
        dout = dout.contiguous()
        scaled = torch.empty((B * R * R, N), dtype=out_w.dtype, device=m.device)
        douter = torch.empty((B, R * E, R * E), dtype=out_w.dtype, device=m.device)
        options = _options("outer_dproject", N, out_w.dtype)
        outer_dproject_kernel[(triton.cdiv(R, options["BLOCK_J"]), R, B)](
            dout, out_w, norm, scaled, douter, R, N, E=E, **options
        )
        a, b = ab.view(2, B, S, -1)
        dab = torch.empty_like(ab)
        da, db = dab.view(2, B, S, -1)
        torch.bmm(b, douter.mT, out=da)
        torch.bmm(a, douter, out=db)
        del douter
        d_out_w, dbias_out = _outer_dw(_outer(ab, B, S), scaled, B, R, E, N, ctx.dtypes[6])
        dab = _masked(dab.transpose(0, 1), mask, rows_first=True).flatten(1)
        flat = m.view(-1, C)
        normed = torch.empty_like(flat, dtype=packed_w.dtype)
        dm, dgamma, dbeta = norm_rows_grad(
            torch.mm(dab, packed_w), flat, stats, gamma, beta, None, normed
        )
        dw, dbias = linear_dw(dab, normed, ctx.dtypes[2])
        grads = [
            dgamma, dbeta, dw[:E], dbias[:E], dw[E:], dbias[E:], d_out_w.t(),
            dbias_out,
        ]  # fmt: skip
        grads = [grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True)]
        dz = dout if ctx.residual else None
        return dm.view(m.shape), None, dz, None, None, None, *grads


def _outer_dw(
    outer: Tensor, scaled: Tensor, B: int, R: int, E: int, N: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradients `[E * E, N]` of the output projection and `[N]` of its bias."""
    rows_c = max(1, min(E, (128 if scaled.dtype is not torch.float32 else 32) // E))
    groups = E // rows_c
    splits = min(B * R, max(1, (2 * sm_count(scaled)) // groups))
    i_each = triton.cdiv(B * R, splits)
    splits = triton.cdiv(B * R, i_each)
    size = (E * E + 1) * N
    partial = torch.empty((splits, size), dtype=torch.float32, device=scaled.device)
    outer_dw_kernel[(groups, splits)](
        outer, scaled, partial, B, R, N, i_each, E=E, ROWS_C=rows_c,
        **_options("outer_dw", N, scaled.dtype),
    )  # fmt: skip
    out = torch.empty(size, dtype=dtype, device=scaled.device)
    sum_splits_kernel[(triton.cdiv(size, 128),)](partial, out, size, splits, BLOCK=128, BLOCK_S=16)
    return out[: E * E * N].view(E * E, N), out[E * E * N :]


def outer_product_mean_fits(m: Tensor, weights: OuterWeights) -> bool:
    """Whether the fused op takes this input: powers of two, 16 or 32 channels to multiply."""
    C, E, N = m.shape[-1], weights.w1.shape[0], weights.out.shape[0]
    powers = all(n & (n - 1) == 0 for n in (C, E, N))
    sizes = E in (16, 32) and 16 <= C <= 512 and 16 <= N <= 128
    return m.dim() == 4 and powers and sizes and m.dtype is not torch.float64 and usable(m)


def outer_product_mean(
    m: Tensor,
    weights: OuterWeights,
    mask: Tensor,
    *,
    z: Tensor | None = None,
    eps: float = 1e-3,
    norm_eps: float = 1e-5,
) -> Tensor:
    """The pair update from m, plus z if given.

    (linear_out(outer) + bias) / (number of shared sequences + eps): the bias is
    divided too, as in AF2.

    Args:
        m: MSA `[B, S, R, C]`.
        weights: the parameters.
        mask: `[B, S, R]`.
        z: pairs `[B, R, R, N]` to add to, or None.
        eps: added to the count of shared sequences.
        norm_eps: of the norm.
    """
    dtype = compute_dtype(m)
    with torch.autocast(m.device.type, enabled=False):
        result: Tensor = _OuterProductMean.apply(  # type: ignore[no-untyped-call]
            m.contiguous(), mask.contiguous(), None if z is None else z.contiguous(), eps,
            norm_eps, dtype, *weights.tensors(),
        )  # fmt: skip
    return result

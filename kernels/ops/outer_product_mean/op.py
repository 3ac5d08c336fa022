"""Outer product mean as one op: norm, projections, outer GEMM, projection, mean, residual.

The outer product of all pairs (134 MB at 256 residues) is written once by a
GEMM and read where it lies; with few sequences the backward pass rebuilds it instead of
keeping it.

Letters: B batch, S sequences, R residues, M = B * S * R, C channels of the MSA,
E channels of a projection, N channels of the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.outer_product_mean.triton import (
    masked_halves_kernel,
    outer_dproject_kernel,
    outer_dw_kernel,
    outer_project_kernel,
)
from evofeed.kernels.runtime.backend import compute_dtype, sm_count, triton, usable
from evofeed.kernels.runtime.checks import check_device, check_shape, check_type
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import (
    norm_rows,
    norm_rows_grad,
    pack,
    padded,
    precision,
    project,
    weight_grad,
)
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.through import through
from evofeed.kernels.runtime.tiles import tile
from evofeed.kernels.runtime.torch_library import operator

__all__ = [
    "OuterWeights",
    "outer_product_mean",
    "outer_product_mean_fits",
    "outer_product_mean_through",
]

KEPT_FROM = 1024  # sequences from which the outer product is kept: 134 MB, or 170 us of GEMM


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


def _masked(source: Tensor, mask: Tensor, to: Tensor, sums: bool = False) -> Tensor | None:
    """`to` = `source` times the mask `[M]`, both `[2, M, E]` views; with `sums` over m too."""
    _, M, E = source.shape
    programs = triton.cdiv(M, 128)
    partial = None
    if sums:
        partial = torch.empty((programs, 2 * E), dtype=torch.float32, device=to.device)
    launch(
        masked_halves_kernel, (programs, 2),
        (source, mask, to, partial, M, *source.stride()[:2], *to.stride()[:2]),
        {"E": E, "BLOCK_M": 128, "SUMS": sums, "num_warps": 4},
    )  # fmt: skip
    return partial


def _options(op: str, E: int, N: int, dtype: torch.dtype) -> dict[str, Any]:
    block = tile(op, N, dtype)
    return {
        "E": E, "BLOCK_CE": max(E, min(block.columns, E * E)), "BLOCK_J": block.rows,
        "BLOCK_N": padded(N), "PRECISION": precision(dtype), "num_warps": block.warps,
        "num_stages": block.stages,
    }  # fmt: skip


class _Function(torch.autograd.Function):
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
        ab = torch.empty((2, B * S * R, E), dtype=dtype, device=m.device)
        _masked(project(normed, packed_w, packed_b).view(-1, 2, E).transpose(0, 1), rows, ab)
        counts = mask.float()
        norm = torch.bmm(counts.mT, counts) + eps
        # [(c, e), n], so that neighbours in memory are neighbours in n
        out_w = pack([w.out.t()], dtype)
        out = torch.empty((B, R, R, N), dtype=m.dtype if z is None else z.dtype, device=m.device)
        options = _options("outer_project", E, N, dtype)
        outer = _outer(ab, B, S)
        launch(
            outer_project_kernel, (triton.cdiv(R, options["BLOCK_J"]), R, B),
            (outer, out_w, w.out_bias, norm, z, out, R, N), {"HAS_RES": z is not None, **options},
        )  # fmt: skip
        kept = outer if S >= KEPT_FROM else None
        ctx.save_for_backward(
            m, rows, w.norm_weight, w.norm_bias, packed_w, out_w, ab, norm, stats, kept
        )
        ctx.residual, ctx.dtypes = z is not None, [t.dtype for t in weights]
        return out

    @staticmethod
    def backward(
        ctx: Any, dout: Tensor, dm_after: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """`dm_after` is added to the gradient of m."""
        m, mask, gamma, beta, packed_w, out_w, ab, norm, stats, outer = ctx.saved_tensors
        B, S, R, C = m.shape
        E, N = packed_w.shape[0] // 2, out_w.shape[1]
        dout = dout.contiguous()
        scaled = torch.empty((B * R * R, N), dtype=out_w.dtype, device=m.device)
        douter = torch.empty((B, R * E, R * E), dtype=out_w.dtype, device=m.device)
        options = _options("outer_dproject", E, N, out_w.dtype)
        tiles = triton.cdiv(R, options["BLOCK_J"])
        out_sums = torch.empty((tiles * R * B, N), dtype=torch.float32, device=m.device)
        launch(
            outer_dproject_kernel, (tiles, R, B),
            (dout, out_w, norm, scaled, douter, out_sums, R, N), options,
        )  # fmt: skip
        a, b = ab.view(2, B, S, -1)
        dab = torch.empty_like(ab)
        da, db = dab.view(2, B, S, -1)
        torch.bmm(b, douter.mT, out=da)
        torch.bmm(a, douter, out=db)
        del douter
        outer = _outer(ab, B, S) if outer is None else outer
        d_out_w = _outer_dw(outer, scaled, B, R, E, N, ctx.dtypes[6])
        del outer
        masked = torch.empty((B * S * R, 2, E), dtype=dab.dtype, device=dab.device)
        ab_sums = _masked(dab, mask, masked.transpose(0, 1), sums=True)
        assert ab_sums is not None
        flat, dab = m.view(-1, C), masked.flatten(1)
        normed = torch.empty_like(flat, dtype=packed_w.dtype)
        dm, norm_sums = norm_rows_grad(
            torch.mm(dab, packed_w), flat, stats, gamma, beta,
            None if dm_after is None else dm_after.contiguous().view(-1, C), normed,
        )  # fmt: skip
        dw = weight_grad(dab, normed)
        of_norm, of_ab, dbias_out = column_sums([norm_sums, ab_sums, out_sums], ctx.dtypes[0])
        grads = [
            *torch.split(of_norm, C), dw[:E], of_ab[:E], dw[E:], of_ab[E:], d_out_w.t(), dbias_out,
        ]  # fmt: skip
        grads = [grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True)]
        dz = dout if ctx.residual else None
        return dm.view(m.shape), None, dz, None, None, None, *grads


_OuterProductMean = operator("outer_product_mean")(_Function)
_OuterProductMeanThrough = through(_Function)


def _outer_dw(
    outer: Tensor, scaled: Tensor, B: int, R: int, E: int, N: int, dtype: torch.dtype
) -> Tensor:
    """Gradient `[E * E, N]` of the output projection."""
    rows_c = max(1, min(E, (128 if scaled.dtype is not torch.float32 else 32) // E))
    groups = E // rows_c
    splits = max(1, min(B * R, (2 * sm_count(scaled)) // groups, 32))
    i_each = triton.cdiv(B * R, splits)
    splits = triton.cdiv(B * R, i_each)
    partial = torch.empty((splits, E * E * N), dtype=torch.float32, device=scaled.device)
    options = _options("outer_dw", E, N, scaled.dtype)
    del options["BLOCK_CE"]
    launch(
        outer_dw_kernel, (groups, splits), (outer, scaled, partial, B, R, N, i_each),
        {"ROWS_C": rows_c, **options},
    )  # fmt: skip
    return column_sums([partial], dtype)[0].view(E * E, N)


def outer_product_mean_fits(m: Tensor, weights: OuterWeights) -> bool:
    """Whether the fused op takes this input: powers of two, 16 or 32 channels to multiply."""
    C, E, N = m.shape[-1], weights.w1.shape[0], weights.out.shape[0]
    powers = all(n & (n - 1) == 0 for n in (C, E, N))
    sizes = E in (16, 32) and 16 <= C <= 512 and 16 <= N <= 128
    return m.dim() == 4 and powers and sizes and m.dtype is not torch.float64 and usable(m)


def outer_product_mean_through(
    m: Tensor,
    weights: OuterWeights,
    mask: Tensor,
    *,
    z: Tensor | None = None,
    eps: float = 1e-3,
    norm_eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """As `outer_product_mean`, and m: used from here on, it saves adding two gradients."""
    if torch.compiler.is_compiling():
        return outer_product_mean(m, weights, mask, z=z, eps=eps, norm_eps=norm_eps), m
    result: tuple[Tensor, Tensor] = _apply(
        _OuterProductMeanThrough, m, weights, mask, z, eps, norm_eps
    )
    return result


def _apply(
    function: Any, m: Tensor, weights: OuterWeights, mask: Tensor, z: Tensor | None, eps: float,
    norm_eps: float,
) -> Any:  # fmt: skip
    dtype = compute_dtype(m)
    with torch.autocast(m.device.type, enabled=False):
        return function.apply(
            m.contiguous(), mask.contiguous(), None if z is None else z.contiguous(), eps,
            norm_eps, dtype, *weights.tensors(),
        )  # fmt: skip


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
    B, S, R, C = m.shape
    check_type("outer_product_mean", m)
    check_shape("outer_product_mean", "weights.w1", weights.w1, weights.w1.shape[0], C)
    check_shape("outer_product_mean", "mask", mask, B, S, R)
    check_shape("outer_product_mean", "z", z, B, R, R, weights.out.shape[0])
    check_device("outer_product_mean", m, weights.w1, mask, z)
    result: Tensor = _apply(_OuterProductMean, m, weights, mask, z, eps, norm_eps)
    return result

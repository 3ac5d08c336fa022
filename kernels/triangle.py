"""Triangle multiplication as one op: norm, gated projections, product, norm, gate, residual.

Saved for the backward pass: the pairs z, the projections a and b, and their
product, all but z channels first; gates are rebuilt from z.

Letters: B batch, R residues, M = B * R * R pairs, C pair channels, E hidden channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.backend import compute_dtype, triton, usable
from evofeed.kernels.choices import tile
from evofeed.kernels.library import operator
from evofeed.kernels.norm import sum_partials
from evofeed.kernels.projection import (
    Drop,
    linear_dw,
    norm_rows_grad,
    pack,
    padded,
    precision,
)
from evofeed.kernels.triangle_kernels import (
    triangle_in_grad_kernel,
    triangle_in_kernel,
    triangle_out_grad_kernel,
    triangle_out_kernel,
)

__all__ = ["TriangleWeights", "triangle_multiplication", "triangle_multiplication_fits"]


@dataclass(frozen=True, slots=True)
class TriangleWeights:
    """Parameters of one triangle multiplication, as OpenFold names them."""

    norm_in_weight: Tensor
    norm_in_bias: Tensor
    a_p: Tensor
    a_p_bias: Tensor
    a_g: Tensor
    a_g_bias: Tensor
    b_p: Tensor
    b_p_bias: Tensor
    b_g: Tensor
    b_g_bias: Tensor
    norm_out_weight: Tensor
    norm_out_bias: Tensor
    z: Tensor
    z_bias: Tensor
    g: Tensor
    g_bias: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order the autograd function takes them."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class _Plan:
    outgoing: bool
    residual: bool
    drop: Drop
    eps: float
    dtype: torch.dtype


def _options(op: str, C: int, E: int, dtype: torch.dtype) -> dict[str, Any]:
    """Tile and precision of one of the four kernels; the outer two hold all of E."""
    block = tile(op, C, dtype)
    whole = op.startswith("triangle_out")
    return {
        "BLOCK_M": block.rows, "BLOCK_C": padded(C),
        "BLOCK_E": padded(E) if whole else min(block.columns, padded(E)),
        "PRECISION": precision(dtype), "num_warps": block.warps, "num_stages": block.stages,
    }  # fmt: skip


@operator("triangle_multiplication", _Plan, Drop)
class _TriangleMultiplication(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, z: Tensor, mask: Tensor, *weights: Tensor) -> Tensor:
        w = TriangleWeights(*weights)
        B, R, _, C = z.shape
        E = w.a_p.shape[0]
        M = B * R * R
        packed_w = pack([w.a_p, w.a_g, w.b_p, w.b_g, w.g], plan.dtype)
        packed_b = torch.cat([w.a_p_bias, w.a_g_bias, w.b_p_bias, w.b_g_bias])
        wz = pack([w.z], plan.dtype)
        ab = torch.empty((2, E * B, R, R), dtype=plan.dtype, device=z.device)
        stats = torch.empty((2, 2, M), dtype=torch.float32, device=z.device)
        options = _options("triangle_in", C, E, plan.dtype)
        triangle_in_kernel[(triton.cdiv(M, options["BLOCK_M"]),)](
            z, w.norm_in_weight, w.norm_in_bias, packed_w, packed_b, mask, ab, stats[0],
            M, C, E, plan.eps, **options,
        )  # fmt: skip
        a, b = ab
        xt = torch.bmm(a, b.mT) if plan.outgoing else torch.bmm(a.mT, b)
        out = torch.empty_like(z)
        options = _options("triangle_out", C, E, plan.dtype)
        triangle_out_kernel[(triton.cdiv(M, options["BLOCK_M"]),)](
            xt, w.norm_out_weight, w.norm_out_bias, wz, w.z_bias, z, w.norm_in_weight,
            w.norm_in_bias, packed_w[4 * E :], w.g_bias, plan.drop.mask, out, stats[1],
            M, C, E, plan.eps, *plan.drop.strides(),
            HAS_DROP=plan.drop.mask is not None, HAS_RES=plan.residual, **options,
        )  # fmt: skip
        ctx.save_for_backward(
            z, mask, w.norm_in_weight, w.norm_in_bias, w.norm_out_weight, w.norm_out_bias,
            packed_w, packed_b, wz, w.z_bias, w.g_bias, ab, xt, stats,
        )  # fmt: skip
        ctx.plan, ctx.dtypes = plan, [t.dtype for t in weights]
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        (
            z, mask, gamma_in, beta_in, gamma_out, beta_out, packed_w, packed_b, wz, z_bias,
            g_bias, ab, xt, stats,
        ) = ctx.saved_tensors  # fmt: skip
        C, E = wz.shape
        M = z.numel() // C
        dout = dout.contiguous().view(M, C)
        dpacked = torch.empty((M, 4 * E + C), dtype=plan.dtype, device=z.device)
        dy = torch.empty((M, C), dtype=plan.dtype, device=z.device)
        dxt = torch.empty_like(xt)
        normed = torch.empty((M, E), dtype=plan.dtype, device=z.device)
        options = _options("triangle_out_grad", C, E, plan.dtype)
        count = triton.cdiv(M, options["BLOCK_M"])
        programs = count
        partial = torch.empty((programs, 2, E), dtype=torch.float32, device=z.device)
        triangle_out_grad_kernel[(programs,)](
            dout, xt, gamma_out, beta_out, wz, z_bias, z, gamma_in, beta_in, packed_w[4 * E :],
            g_bias, plan.drop.mask, dxt, dy, dpacked[:, 4 * E :], normed, partial, M, C, E,
            dpacked.stride(0), plan.eps, *plan.drop.strides(), triton.cdiv(count, programs),
            HAS_DROP=plan.drop.mask is not None, **options,
        )  # fmt: skip
        dgamma_out, dbeta_out = sum_partials(partial, torch.float32)
        dwz, dbz = linear_dw(dy, normed, ctx.dtypes[12])
        del dy, normed
        a, b = ab
        dab = torch.empty_like(ab)
        if plan.outgoing:  # x_ij = sum_k a_ik b_jk
            torch.bmm(dxt, b, out=dab[0])
            torch.bmm(dxt.mT, a, out=dab[1])
        else:  # x_ij = sum_k a_ki b_kj
            torch.bmm(b, dxt.mT, out=dab[0])
            torch.bmm(a, dxt, out=dab[1])
        options = _options("triangle_in_grad", C, E, plan.dtype)
        triangle_in_grad_kernel[(triton.cdiv(M, options["BLOCK_M"]),)](
            z, gamma_in, beta_in, packed_w, packed_b, mask, dab, dpacked, M, C, E,
            dpacked.stride(0), plan.eps, **options,
        )  # fmt: skip
        flat = z.view(M, C)
        normed = torch.empty_like(flat, dtype=plan.dtype)
        dz, dgamma_in, dbeta_in = norm_rows_grad(
            torch.mm(dpacked, packed_w), flat, stats[0], gamma_in, beta_in,
            dout if plan.residual else None, normed,
        )  # fmt: skip
        dw, db = linear_dw(dpacked, normed, ctx.dtypes[2])
        parts = [t for n in range(4) for t in (dw[n * E : (n + 1) * E], db[n * E : (n + 1) * E])]
        grads = [
            dgamma_in, dbeta_in, *parts, dgamma_out, dbeta_out, dwz, dbz, dw[4 * E :], db[4 * E :],
        ]  # fmt: skip
        grads = [grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True)]
        return None, dz.view(z.shape), None, *grads


def triangle_multiplication_fits(z: Tensor, weights: TriangleWeights) -> bool:
    """Whether the fused op takes this input: powers of two of 16 to 128 channels."""
    C, E = z.shape[-1], weights.a_p.shape[0]
    powers = all(n & (n - 1) == 0 and 16 <= n <= 128 for n in (C, E))
    square = z.dim() == 4 and z.shape[1] == z.shape[2]
    return square and powers and z.dtype is not torch.float64 and usable(z, weights.a_p)


def triangle_multiplication(
    z: Tensor,
    weights: TriangleWeights,
    *,
    outgoing: bool,
    mask: Tensor | None = None,
    residual: bool = False,
    drop_mask: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The triangle multiplicative update of z, dropped out, plus z if `residual`.

    Args:
        z: pairs `[B, R, R, C]`.
        weights: the parameters.
        outgoing: edges i->k, j->k (True) or k->i, k->j (False).
        mask: `[B, R, R]`, or None.
        residual: whether z is added.
        drop_mask: `[B, R, C]` shared along the first residue axis, scaled by 1/(1-p), or None.
        eps: of both norms.
    """
    dtype = compute_dtype(z)
    mask = z.new_ones(z.shape[:3]) if mask is None else mask.contiguous()
    plan = _Plan(outgoing, residual, Drop(drop_mask, (z.shape[1], z.shape[2])), eps, dtype)
    with torch.autocast(z.device.type, enabled=False):
        result: Tensor = _TriangleMultiplication.apply(  # type: ignore[no-untyped-call]
            plan, z.contiguous(), mask, *weights.tensors()
        )
    return result

"""Triangle multiplication as one op: norm, gated projections, product, norm, gate, residual.

Saved for the backward pass: the pairs z, the projections a and b, channels first, and their
product where it is small (it takes 18 us at 256 residues). The gates are recomputed.

Letters: B batch, R residues, M = B * R * R pairs, C pair channels, E hidden channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.triangle_multiplication import composed, cuequivariance, reference
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as hopper
from evofeed.kernels.ops.triangle_multiplication.launch import (
    by_cublas,
    packed_weights,
    product,
    product_grads,
    programs_of,
    project,
    run,
    run_out_grad,
)
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.ops.triangle_multiplication.triton import (
    triangle_in_grad_kernel,
    triangle_out_kernel,
)
from evofeed.kernels.runtime.backend import compute_dtype, launchable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.private_apis import scheduled_ahead
from evofeed.kernels.runtime.projection import Drop, keeps, norm_rows, pack, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors


class Product(Protocol):
    """The product over k of pairs whose rows are sharded over GPUs."""

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """Rows `[E, B, I, R]` from those of a and b `[2, E, B, I, R]`, and tensors to save."""

    def gradient(self, dproduct: Tensor, saved: list[Tensor], outgoing: bool) -> Tensor:
        """The gradient of `ab` from that of the product and the saved tensors."""


class _Plan(NamedTuple):
    """Options of one call."""

    outgoing: bool
    residual: bool
    drop_columnwise: bool
    eps: float
    dtype: torch.dtype


class _TriangleMultiplication(Operator, name="triangle_multiplication"):
    options = "bool outgoing, bool residual, bool drop_columnwise, float eps, ScalarType dtype"
    saved_inputs = (0, 1, 2, 3, 4, 13, 14, 16, 18)  # z, mask, drop_mask, both norms, z_bias, g_bias

    @staticmethod
    def forward(tensors: Tensors, *options: Any, others: Product | None = None) -> Results:
        """With `others` z has some rows of the pairs; the product's saved tensors come last."""
        plan = _Plan(*options)
        z, mask, drop_mask, *weights = tensors
        w: Any = TriangleWeights(*weights)
        drop = Drop(drop_mask, (z.shape[1], z.shape[2]), plan.drop_columnwise)
        B, R, N, C = z.shape
        E = w.a_p.shape[0]
        M = B * R * N
        packed_w, packed_b = packed_weights(w, plan.dtype)
        wz = pack([w.z], plan.dtype)
        ab = torch.empty((2, E * B, R, N), dtype=plan.dtype, device=z.device)
        stats = torch.empty((2, 2, M), dtype=torch.float32, device=z.device)
        norm_in = (w.norm_in_weight, w.norm_in_bias)
        norm_out = (w.norm_out_weight, w.norm_out_bias)
        sizes, on_hopper = (M, C, E), hopper.fits(z, E, plan.dtype)
        normed = project(z, *norm_in, packed_w, packed_b, mask, ab, stats[0], plan.eps)
        if others is None:
            xt = product(ab, plan.outgoing)
            saved = [ab, xt if keeps(xt.shape, plan.dtype) else None]
        else:
            xt, product_saved = others(ab.view(2, E, B, R, N), plan.outgoing)
            saved = [xt, *product_saved]
        del ab  # it may be unused from here on
        out = torch.empty_like(z)
        if normed is not None:
            stats[1] = composed.run_out(
                xt, *norm_out, wz, w.z_bias, z, normed, packed_w[4 * E :], w.g_bias, drop,
                plan.residual, out, plan.eps,
            )  # fmt: skip
        elif on_hopper:
            hopper.run_out(
                xt, *norm_out, wz, w.z_bias, z, stats, *norm_in, packed_w[4 * E :], w.g_bias,
                drop, plan.residual, out, plan.eps,
            )  # fmt: skip
        else:
            run(
                triangle_out_kernel, "triangle_out",
                (xt, *norm_out, wz, w.z_bias, z, *norm_in, packed_w[4 * E :], w.g_bias,
                 drop_mask, out, stats[1]),
                sizes, plan.dtype, (plan.eps, *drop.strides()),
                HAS_DROP=drop_mask is not None, HAS_RES=plan.residual,
            )  # fmt: skip
        return [out, packed_w, packed_b, wz, stats, *saved]

    @staticmethod
    def backward(tensors: Tensors, *options: Any, others: Product | None = None) -> Results:
        plan = _Plan(*options)
        (
            dout, z, mask, drop_mask, gamma_in, beta_in, gamma_out, beta_out, z_bias, g_bias,
            packed_w, packed_b, wz, stats, *saved,
        ) = tensors  # fmt: skip
        drop = Drop(drop_mask, (z.shape[1], z.shape[2]), plan.drop_columnwise)
        C, E = wz.shape
        M = z.numel() // C
        dout = dout.contiguous().view(M, C)
        flat = z.view(M, C)
        sizes, on_hopper = (M, C, E), hopper.fits(z, E, plan.dtype)
        in_parts = not on_hopper and by_cublas(C, E)
        if in_parts:
            normed, _, _ = norm_rows(flat, gamma_in, beta_in, plan.eps, plan.dtype)
            dpacked = scheduled_ahead(torch.mm, normed, packed_w.t())  # becomes its gradient
        else:
            normed = torch.empty_like(flat, dtype=plan.dtype)
            dpacked = torch.empty((M, 4 * E + C), dtype=plan.dtype, device=z.device)
        if others is None:
            ab, xt = saved
            xt = product(ab, plan.outgoing) if xt is None else xt
        else:
            xt = saved[0]
        dxt = torch.empty_like(xt)
        if in_parts:
            dwz, parts = composed.run_out_grad(
                dout, xt, gamma_out, beta_out, wz, z_bias, dpacked[:, 4 * E :], g_bias, drop, dxt,
                plan.eps,
            )  # fmt: skip
            dwz, of_out = dwz.to(gamma_in.dtype), torch.cat(column_sums(parts, gamma_in.dtype))
        elif on_hopper:
            dwz, of_out = hopper.run_out_grad(
                dout, xt, gamma_out, beta_out, wz, z_bias, z, stats, gamma_in, beta_in,
                packed_w[4 * E :], g_bias, drop, dxt, dpacked[:, 4 * E :], gamma_in.dtype,
            )  # fmt: skip
        else:
            dwz, of_out = run_out_grad(
                dout, xt, gamma_out, beta_out, wz, z_bias, z, gamma_in, beta_in,
                packed_w[4 * E :], g_bias, plan.eps, drop, dxt, dpacked[:, 4 * E :], plan.dtype,
                gamma_in.dtype,
            )  # fmt: skip
        del xt
        if others is None:
            dab = product_grads(dxt, ab, plan.outgoing)
        else:
            dab = others.gradient(dxt, saved[1:], plan.outgoing)
        if in_parts:
            in_sums = composed.run_in_grad(dpacked, packed_b, mask, dab)
        elif on_hopper:
            in_sums = hopper.run_in_grad(
                z, stats[0], gamma_in, beta_in, packed_w, packed_b, mask, dab, dpacked
            )
        else:
            programs = programs_of("triangle_in_grad", sizes, plan.dtype)
            in_sums = torch.empty((programs, 4 * E), dtype=torch.float32, device=z.device)
            run(
                triangle_in_grad_kernel, "triangle_in_grad",
                (z, gamma_in, beta_in, packed_w, packed_b, mask, dab, dpacked, in_sums),
                sizes, plan.dtype, (dpacked.stride(0), plan.eps),
            )  # fmt: skip
        dz, norm_sums = norm_rows_grad(
            scheduled_ahead(torch.mm, dpacked, packed_w), flat, stats[0], gamma_in, beta_in,
            dout if plan.residual else None, None if in_parts else normed,
        )  # fmt: skip
        of_norm, of_in = column_sums([norm_sums, in_sums], gamma_in.dtype)
        *of_ab, dwg = torch.split(weight_grad(dpacked, normed, gamma_in.dtype), [E, E, E, E, C])
        dgamma_out, dbeta_out, dbz, dbg = torch.split(of_out, [E, E, C, C])
        return [
            dz.view(z.shape), None, None, *of_norm.chunk(2),
            *(t for pair in zip(of_ab, torch.split(of_in, E), strict=True) for t in pair),
            dgamma_out, dbeta_out, dwz, dbz, dwg, dbg,
        ]  # fmt: skip


def triangle_multiplication_fits(
    z: Tensor, weights: TriangleWeights, *, rows: bool = False
) -> bool:
    """True if the fused op takes this input: powers of two of 16 to 256 channels.

    With cuEquivariance installed, 384 and 512 too. With `rows` z may be some rows of square pairs.
    """
    C, E = z.shape[-1], weights.a_p.shape[0]
    powers = all(n & (n - 1) == 0 and 16 <= n <= 256 for n in (C, E))
    square = z.dim() == 4 and (z.numel() > 0 if rows else z.shape[1] == z.shape[2])
    wide = not rows and cuequivariance.serves(z, weights)
    return square and (powers or wide) and weights.readable(z)


def fused_triangle_multiplication(
    z: Tensor, weights: TriangleWeights, *, outgoing: bool, mask: Tensor | None, residual: bool,
    drop_mask: Tensor | None, drop_columnwise: bool, eps: float, others: Product | None = None,
) -> FusedResult:  # fmt: skip
    """`triangle_multiplication`, or None where no kernel takes these.

    With `others` z has some rows of the pairs, `[B, I, R, C]`; `others` computes the product.
    """
    B, rows, R, C = z.shape
    check_shape("triangle_multiplication", "z", z, B, R if others is None else rows, R, C)
    check_shape("triangle_multiplication", "mask", mask, B, rows, R)
    check_shape("triangle_multiplication", "drop_mask", drop_mask, B, R, C)
    fits = triangle_multiplication_fits(z, weights, rows=others is not None)
    if not (fits and launchable(z, weights.norm_in_weight, mask, drop_mask)):
        return None
    if others is None and cuequivariance.serves(z, weights):
        update = cuequivariance.triangle_multiplication(
            z, weights, outgoing=outgoing, mask=mask, eps=eps
        )
        return reference.added(z, update, residual, drop_mask, drop_columnwise)
    mask = z.new_ones(z.shape[:3]) if mask is None else mask.contiguous()
    plan = _Plan(outgoing, residual, drop_columnwise, eps, compute_dtype(z))
    tensors = z.contiguous(), mask, drop_mask, *weights.tensors()
    return _TriangleMultiplication.apply(plan, *tensors, others=others)


triangle_multiplication = falls_back_to(reference.triangle_multiplication)(
    fused_triangle_multiplication
)

"""Launches for both factors of the product, the product by cuBLAS, and the output.

Letters: B batch, R residues, I x J any part of the pairs, M of them, C pair channels, E hidden
channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication import composed
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as hopper
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.ops.triangle_multiplication.triton import (
    triangle_in_kernel,
    triangle_out_grad_kernel,
)
from evofeed.kernels.runtime.backend import compute_dtype, triton, without_autocast
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.private_apis import scheduled_ahead
from evofeed.kernels.runtime.projection import Drop, pack, padded, precision, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import tile

COMPOSED = 256  # channels from which cuBLAS computes the projections


def run(
    kernel: Any, op: str, args: tuple[Any, ...], sizes: tuple[int, int, int], dtype: torch.dtype,
    more: tuple[Any, ...] = (), **meta: bool,
) -> None:  # fmt: skip
    """Launches one of the four kernels; those of the output hold all E channels."""
    M, C, E = sizes
    block = tile(op, C, dtype)
    if op.startswith("triangle_out"):
        columns = {"BLOCK_E": padded(E), "BLOCK_N": min(block.columns, padded(C))}
    else:
        columns = {"BLOCK_E": min(block.columns, padded(E))}
    launch(
        kernel, (programs_of(op, sizes, dtype),), (*args, M, C, E, *more),
        {"BLOCK_M": block.rows, "BLOCK_C": padded(C), **columns, **meta,
         "PRECISION": precision(dtype), "num_warps": block.warps, "num_stages": block.stages},
    )  # fmt: skip


def programs_of(op: str, sizes: tuple[int, int, int], dtype: torch.dtype) -> int:
    """Number of programs that share the pairs."""
    programs: int = triton.cdiv(sizes[0], tile(op, sizes[1], dtype).rows)
    return programs


def product(ab: Tensor, outgoing: bool) -> Tensor:
    """`[E * B, R, R]`: x_ij is the sum over k of a_ik b_jk, or of a_ki b_kj."""
    a, b = ab
    return scheduled_ahead(torch.bmm, *((a, b.mT) if outgoing else (a.mT, b)))


def product_grads(dxt: Tensor, ab: Tensor, outgoing: bool) -> Tensor:
    """The gradient of `ab` from the gradient of its product."""
    a, b = ab
    dab = torch.empty_like(ab)
    if outgoing:  # x_ij = sum_k a_ik b_jk
        scheduled_ahead(torch.bmm, dxt, b, out=dab[0])
        scheduled_ahead(torch.bmm, dxt.mT, a, out=dab[1])
    else:  # x_ij = sum_k a_ki b_kj
        scheduled_ahead(torch.bmm, b, dxt.mT, out=dab[0])
        scheduled_ahead(torch.bmm, a, dxt, out=dab[1])
    return dab


def run_out_grad(
    dout: Tensor, xt: Tensor, gamma_x: Tensor, beta_x: Tensor, wz: Tensor, bz: Tensor, z: Tensor,
    gamma_z: Tensor, beta_z: Tensor, wg: Tensor, bg: Tensor, eps: float, drop: Drop,
    dxt: Tensor, dgate: Tensor, dtype: torch.dtype, sums_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same as `hopper.run_out_grad`."""
    (M, C), E = dout.shape, wz.shape[1]
    dy = torch.empty((M, C), dtype=dtype, device=z.device)
    normed = torch.empty((M, E), dtype=dtype, device=z.device)
    sizes = (M, C, E)
    programs = programs_of("triangle_out_grad", sizes, dtype)
    sums = torch.empty((programs, 2 * (C + E)), dtype=torch.float32, device=z.device)
    run(
        triangle_out_grad_kernel, "triangle_out_grad",
        (dout, xt, gamma_x, beta_x, wz, bz, z, gamma_z, beta_z, wg, bg, drop.mask, dxt, dy,
         dgate, normed, sums),
        sizes, dtype, (dgate.stride(0), eps, *drop.strides()),
        HAS_DROP=drop.mask is not None,
    )  # fmt: skip
    return weight_grad(dy, normed, sums_dtype), column_sums([sums], sums_dtype)[0]


def packed_weights(w: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights of the layers of the normalised pairs, and their biases except the output gate's."""
    weights = pack([w.a_p, w.a_g, w.b_p, w.b_g, w.g], dtype)
    return weights, pack([w.a_p_bias, w.a_g_bias, w.b_p_bias, w.b_g_bias], w.a_p_bias.dtype)


def project(
    z: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, ab: Tensor,
    stats: Tensor, eps: float,
) -> Tensor | None:  # fmt: skip
    """Fills a, b and the statistics of z; returns the normalised pairs where they are written."""
    C, E = z.shape[-1], bias.numel() // 4
    if hopper.projects(z, E, ab.dtype):
        hopper.run_in(z, gamma, beta, weight, bias, mask, ab, stats, eps)
        return None
    if by_cublas(C, E):
        normed, z_stats = composed.run_in(z, gamma, beta, weight, bias, mask, ab, eps)
        stats.copy_(z_stats)
        return normed
    run(
        triangle_in_kernel, "triangle_in", (z, gamma, beta, weight, bias, mask, ab, stats),
        (mask.numel(), C, E), ab.dtype, (eps,),
    )  # fmt: skip
    return None


def by_cublas(C: int, E: int) -> bool:
    """True if cuBLAS computes the projections too, because wide tiles spill registers."""
    return max(C, E) >= COMPOSED


def triangle_projections(
    z: Tensor, weights: TriangleWeights, *, mask: Tensor, eps: float = 1e-5
) -> Tensor:
    """Both factors of the product, `[2, E, B, I, J]`, of any part of the pairs, which must fit.

    Without a gradient: the input that `triangle_multiplication` passes to a `Product`.

    Args:
        z: `[B, I, J, C]`.
        weights: the parameters.
        mask: `[B, I, J]`.
        eps: of the norm.
    """
    E, dtype = weights.a_p.shape[0], compute_dtype(z)
    B, *part = z.shape[:3]
    w = type(weights)(*weights.tensors())
    z, mask = z.contiguous(), mask.contiguous()
    ab = torch.empty((2, E * B, *part), dtype=dtype, device=z.device)
    stats = torch.empty((2, mask.numel()), dtype=torch.float32, device=z.device)
    with without_autocast(z), torch.no_grad():
        norm = (w.norm_in_weight, w.norm_in_bias)
        project(z, *norm, *packed_weights(w, dtype), mask, ab, stats, eps)
    return ab.view(2, E, B, *part)

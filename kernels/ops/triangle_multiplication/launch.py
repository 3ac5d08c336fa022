"""Launches of the kernels for any card, and the product between them, which is cuBLAS's.

Letters: B batch, R residues, M = B * R * R pairs, C pair channels, E hidden channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication.triton import triangle_out_grad_kernel
from evofeed.kernels.runtime.backend import triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import Drop, padded, precision, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import tile


def run(
    kernel: Any, op: str, args: tuple[Any, ...], sizes: tuple[int, int, int], dtype: torch.dtype,
    more: tuple[Any, ...] = (), **meta: bool,
) -> None:  # fmt: skip
    """Launches one of the four kernels; those of the output hold all of E."""
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
    """How many programs share the pairs."""
    programs: int = triton.cdiv(sizes[0], tile(op, sizes[1], dtype).rows)
    return programs


def product(ab: Tensor, outgoing: bool) -> Tensor:
    """`[E * B, R, R]`: x_ij is the sum over k of a_ik b_jk, or of a_ki b_kj."""
    a, b = ab
    return torch.bmm(a, b.mT) if outgoing else torch.bmm(a.mT, b)


def product_grads(dxt: Tensor, ab: Tensor, outgoing: bool) -> Tensor:
    """The gradient of `ab` from that of its product."""
    a, b = ab
    dab = torch.empty_like(ab)
    if outgoing:  # x_ij = sum_k a_ik b_jk
        torch.bmm(dxt, b, out=dab[0])
        torch.bmm(dxt.mT, a, out=dab[1])
    else:  # x_ij = sum_k a_ki b_kj
        torch.bmm(b, dxt.mT, out=dab[0])
        torch.bmm(a, dxt, out=dab[1])
    return dab


def run_out_grad(
    dout: Tensor, xt: Tensor, gamma_x: Tensor, beta_x: Tensor, wz: Tensor, bz: Tensor, z: Tensor,
    gamma_z: Tensor, beta_z: Tensor, wg: Tensor, bg: Tensor, eps: float, drop: Drop,
    dxt: Tensor, dgate: Tensor, dtype: torch.dtype, sums_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `hopper.run_out_grad`."""
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

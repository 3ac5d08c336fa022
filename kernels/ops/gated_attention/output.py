"""The end of a gated attention: gate, output layer, dropout and residual, and their gradients.

Letters: B batch, R and N the two position axes, M = B * R * N rows, C channels of the result,
H heads, D head width, K = H * D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.hopper import launch as hopper
from evofeed.kernels.ops.gated_attention.triton import gated_output_grad_kernel, gated_output_kernel
from evofeed.kernels.runtime.backend import triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import (
    Drop,
    padded,
    precision,
    project,
    scaled,
    weight_grad,
)
from evofeed.kernels.runtime.tiles import tile


def gated_output(
    attended: Tensor, gate: Tensor, gate_bias: Tensor, weight: Tensor, bias: Tensor, x: Tensor,
    drop: Drop, residual: bool,
) -> Tensor:  # fmt: skip
    """drop * ((sigmoid(gate + gate_bias) * attended) weight^T + bias), plus x if `residual`.

    Args:
        attended: `[B, R, N, H, D]`, contiguous.
        gate: `[M, K]` view with any stride between rows.
        gate_bias, weight, bias: `[K]`, `[C, K]` and `[C]`.
        x: `[B, R, N, C]`; the result has its shape and type.
        drop: the dropout mask.
        residual: True to add x.
    """
    C, K = weight.shape
    if hopper.fits(x, K, weight.dtype):
        return hopper.run_output(attended, gate, gate_bias, weight, bias, x, drop, residual)
    M = attended.numel() // K
    out = torch.empty_like(x)
    block = tile("gated_output", K, weight.dtype)
    launch(
        gated_output_kernel, (triton.cdiv(M, block.rows),),
        (attended, gate, gate_bias, weight, bias, drop.mask, x, out, M, K, C, gate.stride(0),
         *drop.strides(), 1, 1),
        {"BLOCK_M": block.rows, "BLOCK_K": padded(K), "BLOCK_N": min(padded(C), block.columns),
         "HAS_DROP": drop.mask is not None, "HAS_RES": residual, "OF_RESIDUE": False,
         "PRECISION": precision(weight.dtype), "num_warps": block.warps,
         "num_stages": block.stages},
    )  # fmt: skip
    return out


def output_grads(
    dout: Tensor, weight: Tensor, attended: Tensor, gate: Tensor, gate_bias: Tensor, do: Tensor,
    dgate: Tensor, drop: Drop, *, columns: bool, sums: bool, dtype: torch.dtype,
) -> tuple[Tensor, list[Tensor], Tensor | None]:  # fmt: skip
    """Fills `do`, like `attended`, and `dgate`, like `gate`, from dout `[M, C]`.

    Returns delta in the order of the attention kernels (`columns`: axis R attends), partial sums of
    the gradients of the gate's bias and, with `sums`, of the output's bias, and the gradient of the
    output's weight in `dtype`. The Hopper kernel returns all sums, the weight's last, and None.
    """
    if hopper.fits(dout, weight.shape[1], weight.dtype):
        delta, *parts = hopper.run_output_grad(
            dout, drop, weight, attended, gate, gate_bias, do, dgate, columns
        )
        return delta, parts, None
    gated = torch.empty_like(attended)
    dy, *out_sums = scaled(dout, weight.dtype, drop) if sums else (dout.to(weight.dtype),)
    grad = project(dy, weight.t())
    delta, parts = gate_grads(grad, attended, gate, gate_bias, do, dgate, gated, columns)
    dweight = weight_grad(dy, gated.view(-1, weight.shape[1]), dtype)
    return delta, [*parts, *out_sums], dweight


def gate_grads(
    grad: Tensor, attended: Tensor, gate: Tensor, gate_bias: Tensor | None, do: Tensor,
    dgate: Tensor, gated: Tensor, columns: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Fills `do`, which may be `grad`, `dgate` and `gated`.

    Returns delta `[B * rows, H, N]`, and partial sums of the gradient of the gate's bias, if any.
    """
    B, R, N, H, D = attended.shape
    M, K = B * R * N, H * D
    rows, length = (N, R) if columns else (R, N)
    delta = torch.empty((B * rows, H, length), dtype=torch.float32, device=do.device)
    to_i, to_j = (1, H * length) if columns else (H * length, 1)
    block, width = tile("gated_output_grad", K, grad.dtype), triton.next_power_of_2(D)
    heads = max(1, min(triton.next_power_of_2(H), 128 // width))  # whole heads, 128 columns
    programs, partial = triton.cdiv(M, block.rows), None
    if gate_bias is not None:
        partial = torch.empty((programs, K), dtype=torch.float32, device=do.device)
    launch(
        gated_output_grad_kernel, (programs, triton.cdiv(H, heads)),
        (grad, attended, gate, gate_bias, do, dgate, gated, delta, partial, M, K, gate.stride(0),
         dgate.stride(0), rows * H * length, to_i, to_j, length, R, N),
        {"BLOCK_M": block.rows, "D": D, "BLOCK_D": width, "HEADS": heads,
         "num_warps": block.warps},
    )  # fmt: skip
    return delta, [] if partial is None else [partial]

"""The transition of the MSA and of the pairs as one op: norm, two layers, mask, residual.

The hidden layer (four times as wide) is not saved: up to 128 channels the forward pass
never writes it, and the backward pass recomputes it.

Letters: M rows, C channels, N hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.transition import reference
from evofeed.kernels.ops.transition.hopper import launch as hopper
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.ops.transition.triton import relu_grad_kernel
from evofeed.kernels.runtime.backend import compute_dtype, launchable, triton
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.mlp import mlp
from evofeed.kernels.runtime.projection import (
    keeps,
    norm_rows,
    pack,
    padded,
    precision,
    project,
    scaled,
    weight_grad,
)
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import tile
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

WIDE = 256  # channels from which two products and a sum are faster than a kernel: 430 to 600 us


class _Transition(Operator, name="transition"):
    options = "float eps, bool residual, ScalarType dtype"
    saved_inputs = (0, 1, 2, 3, 5)  # x, mask, gamma, beta, b1

    @staticmethod
    def forward(tensors: Tensors, eps: float, residual: bool, dtype: torch.dtype) -> Results:
        x, mask, gamma, beta, w1, b1, w2, b2 = tensors
        C, normed = x.shape[-1], None
        packed1, packed2 = pack([w1], dtype), pack([w2], dtype)
        rows, flat = None if mask is None else mask.reshape(-1), x.view(-1, C)
        if C < WIDE:
            out, stats = mlp(
                "mlp", flat, (gamma, beta), packed1, packed2, ba=b1, bo=b2, eps=eps, mask=rows,
                residual=residual,
            )  # fmt: skip
        else:
            normed, stats, _ = norm_rows(flat, gamma, beta, eps, dtype)
            out = project(project(normed, packed1, b1, relu=True), packed2, b2)
            if not keeps(flat.shape, dtype):
                normed = None
            out = out if rows is None else out * rows[:, None].to(out.dtype)
            out = flat + out if residual else out.to(x.dtype)
        return [out.view(x.shape), packed1, packed2, stats, normed]

    @staticmethod
    def backward(tensors: Tensors, eps: float, residual: bool, dtype: torch.dtype) -> Results:
        dout, x, mask, gamma, beta, b1, w1, w2, stats, normed = tensors
        C = x.shape[-1]
        # dout is summed for the last bias here, or by the norm, which reads it too
        sums_here = mask is not None or not residual or dout.dtype is not dtype
        mask = None if mask is None else mask.reshape(-1)
        flat, dout = x.view(-1, C), dout.contiguous().view(-1, C)
        dy, *out_sums = scaled(dout, dtype, mask=mask) if sums_here else (dout,)
        if normed is None:
            normed, _, _ = norm_rows(flat, gamma, beta, eps, dtype)
        if hopper.fits(normed, w1):
            dhidden, (*of_weights, hidden_sums) = hopper.run_hidden_grad(normed, dy, w1, b1, w2)
        else:
            hidden = project(normed, w1, b1, relu=True)
            dhidden, hidden_sums = relu_grad(dy, w2, hidden)
            dw1 = weight_grad(dhidden, normed, gamma.dtype)
            dw2, of_weights = weight_grad(dy, hidden, gamma.dtype), []
            del hidden
        del normed
        dx, norm_sums = norm_rows_grad(
            project(dhidden, w1.t()), flat, stats, gamma, beta, dout if residual else None,
            residual_sum=not sums_here,
        )  # fmt: skip
        parts = [norm_sums, hidden_sums, *out_sums]
        of_norm, db1, *rest = column_sums([*parts, *of_weights], gamma.dtype)
        if of_weights:
            *rest, dw1, dw2 = *rest[:-2], rest[-2].view(w1.shape), rest[-1].view(w2.shape)
        dgamma, dbeta, *last = torch.split(of_norm, C)
        return [
            dx.view(x.shape),
            None,
            dgamma,
            dbeta,
            dw1,
            db1,
            dw2,
            *(rest if sums_here else last),
        ]


def relu_grad(dy: Tensor, w: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """dy w for `[M, K]` and `[K, N]`, 0 where `hidden` is not positive.

    Also `[programs, N]` whose column sums are those of the result.
    """
    M, K = dy.shape
    N = w.shape[1]
    y = torch.empty((M, N), dtype=w.dtype, device=dy.device)
    block = tile("relu_grad", N, w.dtype)
    block_n, block_k = min(block.columns, padded(N)), min(64, block.columns, padded(K))
    tiles = triton.cdiv(M, block.rows)
    partial = torch.empty((tiles, N), dtype=torch.float32, device=dy.device)
    launch(
        relu_grad_kernel, (tiles * triton.cdiv(N, block_n),),
        (dy, w, hidden, y, partial, M, N, K, dy.stride(0), w.stride(0)),
        {"BLOCK_M": block.rows, "BLOCK_N": block_n, "BLOCK_K": block_k,
         "PRECISION": precision(w.dtype), "num_warps": block.warps, "num_stages": block.stages},
    )  # fmt: skip
    return y, partial


def transition_fits(x: Tensor, weights: TransitionWeights) -> bool:
    """True if the fused op takes this input: a power of two of up to 256 channels."""
    C = x.shape[-1]
    return C & (C - 1) == 0 and 16 <= C <= 256 and weights.readable(x)


@falls_back_to(reference.transition)
def transition(
    x: Tensor, weights: TransitionWeights, *, mask: Tensor | None, residual: bool, eps: float
) -> FusedResult:
    """Norm, two layers with relu between, mask, residual."""
    check_shape("transition", "weights.w1", weights.w1, weights.w1.shape[0], x.shape[-1])
    check_shape("transition", "mask", mask, *x.shape[:-1])
    if not (transition_fits(x, weights) and launchable(x, weights.w1, mask)):
        return None
    options = eps, residual, compute_dtype(x)
    mask = None if mask is None else mask.contiguous()  # a broadcast mask has no rows
    return _Transition.apply(options, x.contiguous(), mask, *weights.tensors())

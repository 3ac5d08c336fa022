"""The SwiGLU transition as one op: norm, two layers and their product, a third, mask, residual.

As in AF2's transition, the hidden layer is not saved: up to 128 channels the forward pass never
writes it, and the backward pass recomputes it.

Letters: M rows, C channels, N hidden channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.swiglu import reference
from evofeed.kernels.ops.swiglu.hopper import launch as hopper
from evofeed.kernels.ops.swiglu.reference import SwigluWeights
from evofeed.kernels.ops.swiglu.triton import swiglu_grad_kernel, swiglu_kernel
from evofeed.kernels.runtime.backend import compute_dtype, launchable, triton
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.mlp import mlp
from evofeed.kernels.runtime.projection import (
    norm_rows,
    pack,
    padded,
    project,
    scaled,
    weight_grad,
)
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

WIDE = 256  # channels from which cuBLAS computes the products, as in `transition`
MAX_CHANNELS = 1024  # of a row of the norm's kernel
ROWS, COLUMNS = 16, 256  # of a tile of the hidden layer


def _launch(kernel: Any, layers: Tensor, hidden: Tensor, *outputs: Tensor) -> None:
    M, N = hidden.shape
    columns = min(COLUMNS, padded(N))
    launch(
        kernel, (triton.cdiv(M, ROWS), triton.cdiv(N, columns)), (layers, hidden, *outputs, M, N),
        {"BLOCK_M": ROWS, "BLOCK_N": columns, "THIRD": layers.shape[1] == 3 * N, "num_warps": 4},
    )  # fmt: skip


def hidden_of(layers: Tensor, N: int) -> Tensor:
    """`[M, N]`, the product of `[M, 2N or 3N]` layers, with silu of the first."""
    hidden = torch.empty((layers.shape[0], N), dtype=layers.dtype, device=layers.device)
    _launch(swiglu_kernel, layers, hidden)
    return hidden


def layers_grad(layers: Tensor, dhidden: Tensor) -> Tensor:
    """The gradient of the layers; `dhidden` is overwritten by the hidden layer."""
    dlayers = torch.empty_like(layers)
    _launch(swiglu_grad_kernel, layers, dhidden, dlayers)
    return dlayers


class _SwigluTransition(Operator, name="swiglu_transition"):
    options = "float eps, bool residual, ScalarType dtype"
    saved_inputs = (0, 1, 2, 3)  # x, mask, gamma, beta

    @staticmethod
    def forward(tensors: Tensors, eps: float, residual: bool, dtype: torch.dtype) -> Results:
        x, mask, gamma, beta, gate, value, out_weight = tensors
        C, N = x.shape[-1], gate.shape[0]
        packed, wo = pack([gate, value], dtype), pack([out_weight], dtype)
        rows, flat = None if mask is None else mask.reshape(-1), x.view(-1, C)
        if hopper.forward_fits(flat, wo):
            eights = hopper.in_eights(packed)
            out, stats = hopper.run(flat, gamma, beta, eights, wo, eps, rows, residual)
        elif C < WIDE:
            out, stats = mlp(
                "swiglu", flat, (gamma, beta), packed, wo, wb=packed[N:], eps=eps, mask=rows,
                residual=residual,
            )  # fmt: skip
        else:
            normed, stats, _ = norm_rows(flat, gamma, beta, eps, dtype)
            out = project(hidden_of(project(normed, packed), N), wo)
            del normed
            out = out if rows is None else out * rows[:, None].to(out.dtype)
            out = flat + out if residual else out.to(x.dtype)
        return [out.view(x.shape), packed, wo, stats]

    @staticmethod
    def backward(tensors: Tensors, eps: float, residual: bool, dtype: torch.dtype) -> Results:
        dout, x, mask, gamma, beta, packed, wo, stats = tensors
        C = x.shape[-1]
        flat, dout = x.view(-1, C), dout.contiguous().view(-1, C)
        rows = None if mask is None else mask.reshape(-1)
        normed, _, _ = norm_rows(flat, gamma, beta, eps, dtype)
        if hopper.fits(flat, wo):
            dy = dout if dout.dtype is dtype else dout.to(dtype)
            packed = hopper.in_eights(packed)
            dab, dpacked, dwo = hopper.run_hidden_grad(normed, dy, rows, packed, wo)
        else:
            dy = dout
            if rows is not None or dout.dtype is not dtype:
                dy, _ = scaled(dout, dtype, mask=rows)
            hidden = project(dy, wo.t())  # the hidden layer's gradient until the next line
            dab = layers_grad(project(normed, packed), hidden)
            dwo = weight_grad(dy, hidden)
            del hidden
            dpacked = weight_grad(dab, normed)
        del normed
        dx, norm_sums = norm_rows_grad(
            project(dab, packed.t()), flat, stats, gamma, beta, dout if residual else None
        )
        (of_norm,) = column_sums([norm_sums], gamma.dtype)
        return [dx.view(x.shape), None, *of_norm.chunk(2), *dpacked.chunk(2), dwo]


def swiglu_transition_fits(x: Tensor, weights: SwigluWeights) -> bool:
    """True if the fused op takes this input: a multiple of 8 channels, 16 to 1024."""
    C = x.shape[-1]
    return C % 8 == 0 and 16 <= C <= MAX_CHANNELS and weights.readable(x)


@falls_back_to(reference.swiglu_transition)
def swiglu_transition(
    x: Tensor, weights: SwigluWeights, *, mask: Tensor | None, residual: bool, eps: float
) -> FusedResult:
    """Norm, silu of one layer times another, a third layer, mask, residual."""
    N, C = weights.gate.shape[0], x.shape[-1]
    check_shape("swiglu_transition", "weights.gate", weights.gate, N, C)
    check_shape("swiglu_transition", "weights.value", weights.value, N, C)
    check_shape("swiglu_transition", "weights.out", weights.out, C, N)
    check_shape("swiglu_transition", "mask", mask, *x.shape[:-1])
    if not (swiglu_transition_fits(x, weights) and launchable(x, weights.gate, mask)):
        return None
    options = eps, residual, compute_dtype(x)
    mask = None if mask is None else mask.contiguous()  # a broadcast mask has no rows
    return _SwigluTransition.apply(options, x.contiguous(), mask, *weights.tensors())

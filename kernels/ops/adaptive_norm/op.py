"""The adaptive norm of AF3's diffusion transformer as one op.

Both layers of s are one product by cuBLAS; norm, gate and shift of a are one kernel, and so is
their backward pass. Only the inputs are saved. Conditioned attention and transitions use the
parts too.

Letters: M rows, C channels of a, K channels of s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm import reference
from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights
from evofeed.kernels.ops.adaptive_norm.triton import adaptive_norm_grad_kernel, adaptive_norm_kernel
from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.runtime.backend import compute_dtype, launchable, sm_count, triton, usable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import norm_rows, pack, padded, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

MAX_CHANNELS = 1024
TILE_SIZE = 4096  # numbers
GRAD_TILE_SIZE = 2048  # in the backward pass, where a program loops over tiles
GRAD_PROGRAMS = 4  # of a multiprocessor, in the backward pass


class Conditions(NamedTuple):
    """Norm and layers of the rows of s `[M, K]`."""

    normed: Tensor  # [M, K]
    layers: Tensor  # [M, 2C]: gate before its bias, then shift
    stats: Tensor


def conditions(
    s: Tensor, gamma: Tensor, packed: Tensor, eps: float, dtype: torch.dtype,
    layers: Tensor | None = None,
) -> Conditions:  # fmt: skip
    """Norm of s with the scale gamma, and its product with `packed` `[2C, K]`, unless given."""
    normed, stats, _ = norm_rows(s, gamma, torch.zeros_like(gamma), eps, dtype)
    return Conditions(normed, project(normed, packed) if layers is None else layers, stats)


def adapted(
    a: Tensor, layers: Tensor, gate_bias: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """The adaptive norm of rows a `[M, C]`, in `dtype`."""
    M, C = a.shape
    out, rows = torch.empty_like(a, dtype=dtype), max(1, TILE_SIZE // padded(C))
    launch(
        adaptive_norm_kernel, (triton.cdiv(M, rows),), (a, layers, gate_bias, out, M, C, eps),
        {"BLOCK_M": rows, "BLOCK_C": padded(C), "num_warps": 4},
    )  # fmt: skip
    return out


def adapted_grads(
    dx: Tensor, a: Tensor, s: Tensor, of_s: Conditions, gamma: Tensor, gate_bias: Tensor,
    packed: Tensor, eps: float, later_a: Tensor | None = None, later_s: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of a and s, plus `later_a` and `later_s`, and of the parameters.

    Those are the scale of s's norm, gate, its bias, shift. Rows are `[M, C]` or `[M, K]`.
    """
    M, C = a.shape
    da, dlayers = torch.empty_like(a), torch.empty_like(of_s.layers)
    rows = max(1, GRAD_TILE_SIZE // padded(C))
    tiles = triton.cdiv(M, rows)
    programs = min(tiles, GRAD_PROGRAMS * sm_count(a))
    partial = torch.empty((programs, C), dtype=torch.float32, device=a.device)
    launch(
        adaptive_norm_grad_kernel, (programs,),
        (dx, a, of_s.layers, gate_bias, later_a, da, dlayers, partial, M, C, eps,
         triton.cdiv(tiles, programs)),
        {"BLOCK_M": rows, "BLOCK_C": padded(C), "HAS_RES": later_a is not None, "STAGES": 3,
         "num_warps": 2},
    )  # fmt: skip
    ds, norm_sums = norm_rows_grad(
        project(dlayers, packed.t()), s, of_s.stats, gamma, torch.zeros_like(gamma), later_s
    )
    dbias, of_norm = column_sums([partial, norm_sums], gate_bias.dtype, gamma.dtype)
    dgate, dshift = weight_grad(dlayers, of_s.normed).chunk(2)
    return [da, ds, of_norm[: s.shape[1]], dgate, dbias, dshift]


class _AdaptiveNorm(Operator, name="adaptive_norm"):
    options = "float eps, ScalarType dtype"
    saved_inputs = (0, 1, 2, 4)  # a, s, gamma, the gate's bias

    @staticmethod
    def forward(tensors: Tensors, eps: float, dtype: torch.dtype) -> Results:
        a, s, gamma, gate, bias, shift = tensors
        packed = pack([gate, shift], dtype)
        of_s = conditions(s.view(-1, s.shape[-1]), gamma, packed, eps, dtype)
        out = adapted(a.view(-1, a.shape[-1]), of_s.layers, bias, eps, a.dtype)
        return [out.view(a.shape), packed]

    @staticmethod
    def backward(tensors: Tensors, eps: float, dtype: torch.dtype) -> Results:
        dout, a, s, gamma, bias, packed = tensors
        rows, flat = (t.view(-1, t.shape[-1]) for t in (a, s))
        of_s, dout = conditions(flat, gamma, packed, eps, dtype), dout.contiguous()
        da, ds, *rest = adapted_grads(dout, rows, flat, of_s, gamma, bias, packed, eps)
        return [da.view(a.shape), ds.view(s.shape), *rest]


def rows_fit(a: Tensor, s: Tensor) -> bool:
    """True if the kernels take these: equally many rows, multiples of 8 up to 1024 channels."""
    widths = (a.shape[-1], s.shape[-1])
    return (
        a.shape[:-1] == s.shape[:-1] and a.numel() > 0
        and all(n % 8 == 0 and 16 <= n <= MAX_CHANNELS for n in widths)
        and torch.float64 not in (a.dtype, s.dtype) and usable(a, s)
    )  # fmt: skip


def adaptive_norm_fits(a: Tensor, s: Tensor, weights: AdaptiveWeights) -> bool:
    """True if the fused op takes these."""
    return rows_fit(a, s) and weights.readable(a)


@falls_back_to(reference.adaptive_norm)
def adaptive_norm(a: Tensor, s: Tensor, weights: AdaptiveWeights, *, eps: float) -> FusedResult:
    """Norm of a, times the sigmoid of one layer of the norm of s, plus another layer of it."""
    C, K = a.shape[-1], s.shape[-1]
    check_shape("adaptive_norm", "weights.gate", weights.gate, C, K)
    check_shape("adaptive_norm", "weights.shift", weights.shift, C, K)
    check_shape("adaptive_norm", "weights.gate_bias", weights.gate_bias, C)
    if not (adaptive_norm_fits(a, s, weights) and launchable(a)):
        return None
    options = eps, compute_dtype(a)
    return _AdaptiveNorm.apply(options, a.contiguous(), s.contiguous(), *weights.tensors())

"""The adaptive norm of AF3's diffusion transformer as one op.

Both layers of s are one product by cuBLAS; norm, gate and shift of a are one kernel, and so is
their backward pass. Only the inputs and the statistics of s are kept.

Letters: M rows, C channels of a, K channels of s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm import reference
from evofeed.kernels.ops.adaptive_norm.triton import (
    adaptive_norm_grad_kernel,
    adaptive_norm_kernel,
)
from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.runtime.backend import compute_dtype, triton, usable
from evofeed.kernels.runtime.checks import check_one_device, check_shape, check_type, in_type_of
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import norm_rows, pack, padded, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator

__all__ = ["AdaptiveWeights", "adaptive_norm", "adaptive_norm_fits"]

MOST = 1024  # channels of a row
AT_ONCE = 4096  # numbers of a tile
WALK = 4  # tiles of a program of the backward pass


@dataclass(frozen=True, slots=True)
class AdaptiveWeights:
    """Parameters: the scale of the norm of s, its two layers and the first one's bias."""

    norm_weight: Tensor
    gate: Tensor
    gate_bias: Tensor
    shift: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order the operator takes them."""
        return self.norm_weight, self.gate, self.gate_bias, self.shift


class _AdaptiveNorm(Operator, name="adaptive_norm"):
    options = "float eps, ScalarType dtype"
    kept = (0, 1, 2, 4)  # a, s, gamma, the gate's bias

    @staticmethod
    def forward(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        a, s, gamma, gate, bias, shift = tensors
        C, packed = a.shape[-1], pack([gate, shift], dtype)
        normed, stats, _ = norm_rows(
            s.view(-1, s.shape[-1]), gamma, torch.zeros_like(gamma), eps, dtype
        )
        out, M = torch.empty_like(a), a.numel() // C
        rows = max(1, AT_ONCE // padded(C))
        launch(
            adaptive_norm_kernel, (triton.cdiv(M, rows),),
            (a, project(normed, packed), bias, out, M, C, eps),
            {"BLOCK_M": rows, "BLOCK_C": padded(C), "num_warps": 4},
        )  # fmt: skip
        return [out, packed, stats]

    @staticmethod
    def forward_fake(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        a, s, _, gate, _, _ = tensors
        C, K = gate.shape
        return [
            a.new_empty(a.shape), a.new_empty((2 * C, K), dtype=dtype),
            a.new_empty((2, s.numel() // K), dtype=torch.float32),
        ]  # fmt: skip

    @staticmethod
    def backward(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        dout, a, s, gamma, bias, packed, stats = tensors
        C, flat = a.shape[-1], s.view(-1, s.shape[-1])
        zeros = torch.zeros_like(gamma)
        normed, _, _ = norm_rows(flat, gamma, zeros, eps, dtype)
        layers, da, M = project(normed, packed), torch.empty_like(a), flat.shape[0]
        rows = max(1, AT_ONCE // padded(C))
        programs = triton.cdiv(M, rows * WALK)
        partial = torch.empty((programs, C), dtype=torch.float32, device=a.device)
        launch(
            adaptive_norm_grad_kernel, (programs,),
            (dout.contiguous(), a, layers, bias, da, partial, M, C, eps, WALK),
            {"BLOCK_M": rows, "BLOCK_C": padded(C), "num_warps": 4},
        )  # fmt: skip
        ds, norm_sums = norm_rows_grad(torch.mm(layers, packed), flat, stats, gamma, zeros, None)
        dbias, of_norm = column_sums([partial, norm_sums], bias.dtype, gamma.dtype)
        return [da, ds.view(s.shape), of_norm, weight_grad(layers, normed), dbias]

    @staticmethod
    def backward_fake(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        _, a, s, gamma, bias, packed, _ = tensors
        return [
            a.new_empty(a.shape), s.new_empty(s.shape), gamma.new_empty(2 * s.shape[-1]),
            packed.new_empty(packed.shape), bias.new_empty(bias.shape),
        ]  # fmt: skip

    @staticmethod
    def gradients(
        grad: Tensor, found: Sequence[Any], kinds: Sequence[torch.dtype | None], *options: Any
    ) -> list[Tensor | None]:
        da, ds, of_norm, dpacked, dbias = found
        dgate, dshift = dpacked.chunk(2)
        return [da, ds, of_norm.chunk(2)[0], dgate, dbias, dshift]


def adaptive_norm_fits(a: Tensor, s: Tensor, weights: AdaptiveWeights) -> bool:
    """Whether the fused op takes these: as many rows each, multiples of 8 up to 1024 channels."""
    widths = (a.shape[-1], s.shape[-1])
    return (
        a.shape[:-1] == s.shape[:-1] and a.numel() > 0
        and all(n % 8 == 0 and 16 <= n <= MOST for n in widths)
        and torch.float64 not in (a.dtype, s.dtype) and usable(a, s, weights.gate)
    )  # fmt: skip


def adaptive_norm(a: Tensor, s: Tensor, weights: AdaptiveWeights, *, eps: float = 1e-5) -> Tensor:
    """sigmoid(gate(norm(s))) * norm(a) + shift(norm(s)), of a's shape and type.

    Args:
        a: `[..., C]`.
        s: `[..., K]`, what it is conditioned on.
        weights: the parameters; the norm of a has none.
        eps: of both norms.

    Source: AF3 SI, algorithm 26.
    """
    C, K = a.shape[-1], s.shape[-1]
    check_type("adaptive_norm", a)
    check_shape("adaptive_norm", "weights.gate", weights.gate, C, K)
    check_shape("adaptive_norm", "weights.shift", weights.shift, C, K)
    check_shape("adaptive_norm", "weights.gate_bias", weights.gate_bias, C)
    if not adaptive_norm_fits(a, s, weights):
        check_one_device("adaptive_norm", a, s, weights.gate)
        return reference.adaptive_norm(a, s, in_type_of(a, weights), eps=eps).to(a.dtype)
    dtype = compute_dtype(a)
    with torch.autocast(a.device.type, enabled=False):
        return _AdaptiveNorm.apply((eps, dtype), a.contiguous(), s.contiguous(), *weights.tensors())

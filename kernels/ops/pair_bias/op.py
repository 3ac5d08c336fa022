"""The attention bias from the pairs: norm and a projection to one number a head, heads first.

Letters: M = B * L * L pairs, C channels, H heads, L residues.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.pair_bias import reference
from evofeed.kernels.ops.pair_bias.triton import heads_last_kernel, pair_norm_backward_kernel
from evofeed.kernels.runtime.backend import compute_dtype, launchable, sm_count, triton, usable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import norm_rows, pack, padded, precision
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import tile
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors


def heads_last(x: Tensor, out: Tensor, transpose: bool) -> None:
    """Writes x `[B, H, I, J]` (`[B, H, J, I]` if `transpose`) as rows `[B * I * J, H]`.

    Columns of `out` beyond H become 0.
    """
    B, H = x.shape[:2]
    size, length = x.shape[2:].numel(), x.shape[2 if transpose else 3]
    M = B * size
    launch(
        heads_last_kernel, (triton.cdiv(M, 256),),
        (x.contiguous(), out, M, H, length, size, out.stride(0)),
        {"BLOCK_M": 256, "BLOCK_H": padded(out.shape[1]), "WIDTH": out.shape[1],
         "TRANSPOSE": transpose, "num_warps": 4},
    )  # fmt: skip


class _PairBias(Operator, name="pair_bias"):
    options = "float eps, float scale, ScalarType dtype"
    saved_inputs = (0, 1, 2)  # z, gamma, beta

    @staticmethod
    def forward(tensors: Tensors, eps: float, scale: float, dtype: torch.dtype) -> Results:
        z, gamma, beta, weight = tensors
        packed = pack([weight], dtype)
        _, stats, bias = norm_rows(
            z.view(-1, z.shape[-1]), gamma, beta, eps, dtype, keep=False, pair_weight=packed,
            pair_length=z.shape[2], pair_rows=z.shape[1], pair_scale=scale,
        )  # fmt: skip
        return [bias, packed, stats]

    @staticmethod
    def backward(
        tensors: Tensors, eps: float, scale: float, dtype: torch.dtype,
        later: Tensor | None = None,
    ) -> Results:  # fmt: skip
        """`later` is added to the gradient of z."""
        dbias, z, gamma, beta, packed, stats = tensors
        H, C = packed.shape
        M = z.numel() // C
        block = tile("pair_bias_grad", C, packed.dtype)
        tiles = triton.cdiv(M, block.rows)
        programs = min(tiles, block.programs * sm_count(z))
        out = torch.empty_like(z)
        partial = torch.empty((programs, (2 + H) * C), dtype=torch.float32, device=z.device)
        launch(
            pair_norm_backward_kernel, (programs,),
            (dbias.contiguous(), z, gamma, beta, stats, packed,
             None if later is None else later.contiguous(), out, partial, M, C, H,
             z.shape[1] * z.shape[2], float(scale), triton.cdiv(tiles, programs)),
            {"BLOCK_M": block.rows, "BLOCK_C": padded(C), "BLOCK_H": padded(H),
             "HAS_RES": later is not None, "PRECISION": precision(packed.dtype),
             "STAGES": block.stages, "num_warps": block.warps, "num_stages": block.stages},
        )  # fmt: skip
        (sums,) = column_sums([partial], gamma.dtype)
        return [out, sums[:C], sums[C : 2 * C], sums[2 * C :].view(H, C)]


def pair_bias_fits(z: Tensor, weight: Tensor) -> bool:
    """True if the fused op takes these pairs `[B, I, J, C]` and this weight `[H, C]`."""
    return z.dim() == 4 and z.numel() > 0 and z.dtype is not torch.float64 and usable(z, weight)


def pair_bias_with_input(
    z: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`pair_bias`, and z for later uses, which saves adding two gradients."""
    if not launchable(z):
        return pair_bias(z, norm_weight, norm_bias, weight, eps, scale), z
    options = eps, scale, compute_dtype(z)
    return _PairBias.apply_with_input(options, z.contiguous(), norm_weight, norm_bias, weight)


@falls_back_to(reference.pair_bias)
def pair_bias(
    z: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, eps: float, scale: float
) -> FusedResult:
    """Attention bias of the normalised pairs, heads first."""
    check_shape("pair_bias", "weight", weight, weight.shape[0], z.shape[-1])
    if not (pair_bias_fits(z, weight) and launchable(z)):
        return None
    options = eps, scale, compute_dtype(z)
    return _PairBias.apply(options, z.contiguous(), norm_weight, norm_bias, weight)

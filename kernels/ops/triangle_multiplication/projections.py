"""The first end of a triangle multiplication: both sides of its product, from the pairs.

Letters: B batch, I x J any part of the pairs, C pair channels, E hidden channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication import composed
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as hopper
from evofeed.kernels.ops.triangle_multiplication.launch import run
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.ops.triangle_multiplication.triton import triangle_in_kernel
from evofeed.kernels.runtime.backend import compute_dtype, without_autocast
from evofeed.kernels.runtime.projection import pack

COMPOSED = 256  # channels from which cuBLAS makes the projections


def packed_weights(w: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights of what is made of the normalised pairs, and the biases of all but the gate."""
    weights = pack([w.a_p, w.a_g, w.b_p, w.b_g, w.g], dtype)
    return weights, pack([w.a_p_bias, w.a_g_bias, w.b_p_bias, w.b_g_bias], w.a_p_bias.dtype)


def project(
    z: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, ab: Tensor,
    stats: Tensor, eps: float,
) -> Tensor | None:  # fmt: skip
    """Fills a and b and the statistics of z; returns the normalised pairs where they are made."""
    C, E = z.shape[-1], bias.numel() // 4
    if hopper.fits(z, E, ab.dtype):
        hopper.run_in(z, gamma, beta, weight, bias, mask, ab, stats, eps)
        return None
    if by_cublas(C, E):
        normed, found = composed.run_in(z, gamma, beta, weight, bias, mask, ab, eps)
        stats.copy_(found)
        return normed
    run(
        triangle_in_kernel, "triangle_in", (z, gamma, beta, weight, bias, mask, ab, stats),
        (mask.numel(), C, E), ab.dtype, (eps,),
    )  # fmt: skip
    return None


def by_cublas(C: int, E: int) -> bool:
    """Whether cuBLAS makes the projections too: wide tiles spill registers."""
    return max(C, E) >= COMPOSED


def triangle_projections(
    z: Tensor, weights: TriangleWeights, *, mask: Tensor, eps: float = 1e-5
) -> Tensor:
    """Both sides of the product, `[2, E, B, I, J]`, of any part of the pairs; they must fit.

    Without a gradient: what `triangle_multiplication_of_rows` gives a `Product`.

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

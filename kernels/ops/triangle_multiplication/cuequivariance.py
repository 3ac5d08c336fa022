"""Triangle multiplication of wide pairs by cuEquivariance's kernels, where they are installed.

From 256 channels on they are faster than ours in bfloat16 (measured on Hopper, docs/kernels.md).
They round pairs, mask and parameters to bfloat16, but not their gradients.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.runtime.backend import compute_dtype, on_hopper, without_autocast

WIDTHS = (256, 384, 512)


@cache
def operator() -> Callable[..., Tensor] | None:
    """cuEquivariance's operator; None if it is not installed or older than 0.13."""
    try:
        release = importlib.metadata.version("cuequivariance-torch").split(".")
        if [int(number) for number in release[:2]] < [0, 13]:
            return None
        from cuequivariance_torch import triangle_multiplicative_update
    except (ImportError, ValueError):
        return None
    update: Callable[..., Tensor] = triangle_multiplicative_update
    return update


def serves(z: Tensor, weights: TriangleWeights) -> bool:
    """True if it takes this call: as many hidden as pair channels, 256 or more, in bfloat16."""
    wide = z.shape[-1] == weights.a_p.shape[0] and z.shape[-1] in WIDTHS
    dtype = compute_dtype(z)
    if not wide or dtype is not torch.bfloat16 or not on_hopper(z, dtype):
        return False
    return not torch.compiler.is_compiling() and operator() is not None


def triangle_multiplication(
    z: Tensor, weights: TriangleWeights, *, outgoing: bool, mask: Tensor | None, eps: float
) -> Tensor:
    """The update of z, without dropout and residual."""
    w, update = weights, operator()
    assert update is not None

    def joined(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.cat([a, b])

    names: dict[str, Any] = {
        "p_in_weight": joined(w.a_p, w.b_p), "p_in_bias": joined(w.a_p_bias, w.b_p_bias),
        "g_in_weight": joined(w.a_g, w.b_g), "g_in_bias": joined(w.a_g_bias, w.b_g_bias),
        "p_out_weight": w.z, "p_out_bias": w.z_bias, "g_out_weight": w.g, "g_out_bias": w.g_bias,
        "norm_in_weight": w.norm_in_weight, "norm_in_bias": w.norm_in_bias,
        "norm_out_weight": w.norm_out_weight, "norm_out_bias": w.norm_out_bias,
    }  # fmt: skip
    with without_autocast(z):
        direction = "outgoing" if outgoing else "incoming"
        return update(z, direction, mask=mask, eps=eps, precision="bfloat16", **names).to(z.dtype)

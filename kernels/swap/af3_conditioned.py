"""Fused forward of the adaptive norms of Boltz, OpenFold3 and Protenix.

Conditioned transitions and layers of the diffusion transformer keep their own forward around them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.adaptive_norm.op import (
    AdaptiveWeights,
    adaptive_norm,
    adaptive_norm_fits,
)
from evofeed.kernels.swap.forms import children_trouble, has, linear_trouble, signature_trouble

__all__ = ["rule"]

# norm of a, norm of s, the gate's layer, the shift's: Boltz, OpenFold3, Protenix
NORMS = (
    ("a_norm", "s_norm", "s_scale", "s_bias"),
    ("layer_norm_a", "layer_norm_s", "linear_g", "linear_s"),
    ("layernorm_a", "layernorm_s", "linear_s", "linear_nobias_s"),
)


def _names(module: nn.Module) -> tuple[str, ...] | None:
    return next((names for names in NORMS if has(module, *names)), None)


class FusedAdaptiveNorm(Recordable):
    """Forward of an adaptive norm."""

    def forward(self: Any, a: Tensor, s: Tensor) -> Tensor:
        """As the original's."""
        _, norm, gate, shift = (getattr(self, name) for name in _names(self) or ())
        weights = AdaptiveWeights(norm.weight, gate.weight, gate.bias, shift.weight)
        if not adaptive_norm_fits(a, s, weights):
            return super().forward(a, s)  # type: ignore[misc,no-any-return]
        return adaptive_norm(a, s, weights, eps=norm.eps)


def _trouble(module: Any, names: tuple[str, ...]) -> str | None:
    trouble = children_trouble(module, names) or signature_trouble(module, "a", "s")
    if trouble:
        return trouble
    of_a, of_s, gate, shift = (getattr(module, name) for name in names)
    C, K = gate.weight.shape
    plain = all(getattr(of_a, part, None) is None for part in ("weight", "bias"))
    scale = getattr(of_s, "weight", None)
    known = isinstance(scale, Tensor) and scale.shape == (K,)
    if not (plain and known) or getattr(of_s, "bias", None) is not None:
        return "has norms with other parameters than a scale of s"
    epsilons = [getattr(norm, "eps", None) for norm in (of_a, of_s)]
    if not isinstance(epsilons[0], float) or epsilons[0] != epsilons[1]:
        return "has norms without eps, or with two"
    return linear_trouble(
        [("the gate's layer", gate, C, K, True), ("the shift's layer", shift, C, K, False)]
    )


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    names = _names(module)
    return None if names is None else _trouble(module, names) or FusedAdaptiveNorm

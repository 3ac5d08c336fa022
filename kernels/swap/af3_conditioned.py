"""Fused forwards of what another tensor conditions in Boltz, OpenFold3 and Protenix.

Adaptive norms and the transitions of the diffusion transformer around them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.adaptive_norm.op import adaptive_norm, adaptive_norm_fits
from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights
from evofeed.kernels.ops.conditioned_transition.op import (
    conditioned_transition,
    conditioned_transition_fits,
)
from evofeed.kernels.ops.conditioned_transition.reference import ConditionedWeights
from evofeed.kernels.swap.forms import (
    children,
    children_trouble,
    has,
    linear_trouble,
    signature_trouble,
)
from evofeed.kernels.swap.parameters import alike, halves, spreads, within

# norm of a, norm of s, the gate's layer, the shift's: Boltz, OpenFold3, Protenix
NORMS = (
    ("a_norm", "s_norm", "s_scale", "s_bias"),
    ("layer_norm_a", "layer_norm_s", "linear_g", "linear_s"),
    ("layernorm_a", "layernorm_s", "linear_s", "linear_nobias_s"),
)


# --- adaptive norms -------------------------------------------------------------------------------


def _names(module: nn.Module) -> tuple[str, ...] | None:
    return next((names for names in NORMS if has(module, *names)), None)


def adaptive_weights(module: Any) -> AdaptiveWeights:
    """Parameters of an adaptive norm."""
    _, norm, gate, shift = (getattr(module, name) for name in _names(module) or ())
    return AdaptiveWeights(norm.weight, gate.weight, gate.bias, shift.weight)


def adaptive_eps(module: Any) -> float:
    """The eps of both its norms."""
    return getattr(module, (_names(module) or ())[1]).eps  # type: ignore[no-any-return]


class FusedAdaptiveNorm(Recordable):
    """Forward of an adaptive norm."""

    def forward(self: Any, a: Tensor, s: Tensor) -> Tensor:
        """As the original's."""
        weights = adaptive_weights(self)
        if not (alike(a, s) and adaptive_norm_fits(a, s, weights)):
            return super().forward(a, s)  # type: ignore[misc,no-any-return]
        return adaptive_norm(a, s, weights, eps=adaptive_eps(self))


def adaptive_trouble(module: Any) -> str | None:
    """What is unknown of an adaptive norm, or None."""
    names = _names(module)
    if names is None:
        return "is not adaptive in a way that a fused op knows"
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


# --- conditioned transitions ----------------------------------------------------------------------


class _Parts(NamedTuple):
    """The parts of a conditioned transition."""

    norm: Any
    hidden: tuple[Tensor, Tensor, Tensor | None]  # weights: silu, value, factor
    out: Any
    last: Any


# the parts of each project's, and its arguments: Boltz, OpenFold3, Protenix
TRANSITIONS = (
    (("adaln", "swish_gate", "a_to_b", "b_to_a", "output_projection"), ("a", "s")),
    (("layer_norm", "swiglu", "linear_g", "linear_out"), ("a", "s", "mask")),
    (("adaln", "linear_nobias_a1", "linear_nobias_a2", "linear_nobias_b", "linear_s"), ("a", "s")),
)


def _transition_parts(module: Any) -> _Parts:
    m = module
    if hasattr(m, "swish_gate"):
        value, silu = halves(m.swish_gate[0].weight)
        return _Parts(m.adaln, (silu, value, m.a_to_b.weight), m.b_to_a, m.output_projection[0])
    if hasattr(m, "swiglu"):
        inner = (m.swiglu.linear_a.weight, m.swiglu.linear_b.weight, None)
        return _Parts(m.layer_norm, inner, m.linear_out, m.linear_g)
    inner = (m.linear_nobias_a1.weight, m.linear_nobias_a2.weight, None)
    return _Parts(m.adaln, inner, m.linear_nobias_b, m.linear_s)


def norm_of(module: Any) -> Any:
    """The adaptive norm of a conditioned transition."""
    return _transition_parts(module).norm


def transition_of_tokens(
    module: Any, a: Tensor, s: Tensor, mask: Tensor | None, residual: bool = False
) -> Tensor | None:
    """Fused conditioned transition, or None where it does not fit."""
    norm, (silu, value, factor), out, last = _transition_parts(module)
    w = adaptive_weights(norm)
    weights = ConditionedWeights(
        w.norm_weight, w.gate, w.gate_bias, w.shift, silu, value, out.weight, last.weight,
        last.bias, factor,
    )  # fmt: skip
    if not (within(mask, a) and spreads(s.shape[:-1], a.shape[:-1])):
        return None
    s = s if s.shape[:-1] == a.shape[:-1] else s.expand(*a.shape[:-1], -1)
    if not (alike(a, s) and conditioned_transition_fits(a, s, weights)):
        return None
    rows = None if mask is None else mask.expand(a.shape[:-1])
    return conditioned_transition(
        a, s, weights, mask=rows, residual=residual, eps=adaptive_eps(norm)
    )


class FusedConditionedTransition(Recordable):
    """Forward of a conditioned transition; only OpenFold3's takes a mask."""

    def forward(self: Any, a: Tensor, s: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's."""
        mask = None
        if hasattr(self, "swiglu"):
            mask = positional[0] if positional else options.get("mask")
        out = transition_of_tokens(self, a, s, mask)
        if out is None:
            return super().forward(a, s, *positional, **options)  # type: ignore[misc,no-any-return]
        return out


def _transition_trouble(
    module: Any, names: tuple[str, ...], arguments: tuple[str, ...]
) -> str | None:
    trouble = children_trouble(module, names) or signature_trouble(module, *arguments)
    if trouble:
        return trouble
    if hasattr(module, "swish_gate"):
        pairs = children(module.swish_gate), children(module.output_projection)
        if pairs != ({"0", "1"}, {"0", "1"}) or any(
            list(part[1].parameters()) for part in (module.swish_gate, module.output_projection)
        ):
            return "gates in a way that no fused op knows"
        trouble = linear_trouble([("the gates' layer", module.swish_gate[0], None, None, False)])
    elif hasattr(module, "swiglu"):
        trouble = children_trouble(module.swiglu, {"linear_a", "linear_b"})
    trouble = trouble or adaptive_trouble(_transition_parts(module).norm)
    if trouble:
        return trouble
    norm, hidden, out, last = _transition_parts(module)
    (C, K), N = adaptive_weights(norm).gate.shape, hidden[0].shape[0]
    if any(t is not None and t.shape != (N, C) for t in hidden):
        return f"its hidden layers are not all [{N}, {C}]"
    inner = [(name, layer, N, C, False) for name, layer in _plain_layers(module)]
    return linear_trouble(
        [*inner, ("the last layer", out, C, N, False), ("the last gate's layer", last, C, K, True)]
    )


def _plain_layers(module: Any) -> list[tuple[str, Any]]:
    """The hidden layers that are modules of their own."""
    if hasattr(module, "a_to_b"):
        return [("a_to_b", module.a_to_b)]
    if hasattr(module, "swiglu"):
        return [(n, getattr(module.swiglu, n)) for n in ("linear_a", "linear_b")]
    return [(n, getattr(module, n)) for n in ("linear_nobias_a1", "linear_nobias_a2")]


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    if _names(module) is not None:
        return adaptive_trouble(module) or FusedAdaptiveNorm
    for names, arguments in TRANSITIONS:
        if has(module, *names):
            return _transition_trouble(module, names, arguments) or FusedConditionedTransition
    return None

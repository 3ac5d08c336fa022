"""Fused forwards of modules of Boltz, OpenFold3 and Protenix that AF2 does not have.

Triangle attention, and triangle multiplication and outer product mean of OpenFold3 and Protenix,
are AF2's without biases: `modules` has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable, tried
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean, outer_product_mean_fits
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.swiglu.op import swiglu_transition, swiglu_transition_fits
from evofeed.kernels.ops.swiglu.reference import SwigluWeights
from evofeed.kernels.ops.triangle_multiplication.op import (
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.swap import modules
from evofeed.kernels.swap.forms import (
    children_trouble,
    has,
    linear_trouble,
    norm_trouble,
    plain_class,
    signature_trouble,
)
from evofeed.kernels.swap.parameters import covers, four_axes, halves, shaped, three_axes, within

PACKED = ("norm_in", "p_in", "g_in", "norm_out", "p_out", "g_out")
NAMED = {"TriangleMultiplicationOutgoing": True, "TriangleMultiplicationIncoming": False}


def packed_triangle_weights(module: Any) -> TriangleWeights:
    """Parameters of Boltz's triangle multiplication: a and b share a matrix, no biases."""
    (a_p, b_p), (a_g, b_g) = halves(module.p_in.weight), halves(module.g_in.weight)
    into, out = module.norm_in, module.norm_out
    return TriangleWeights(
        into.weight, into.bias, a_p, None, a_g, None, b_p, None, b_g, None, out.weight, out.bias,
        module.p_out.weight, None, module.g_out.weight, None,
    )  # fmt: skip


class FusedPackedTriangleMultiplication(Recordable):
    """Forward of Boltz's triangle multiplications, which have no attribute of their direction."""

    outgoing: bool

    def forward(self: Any, x: Tensor, mask: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's."""
        weights, flat = packed_triangle_weights(self), four_axes(x)
        if not (within(mask, x) and triangle_multiplication_fits(flat, weights)):
            return super().forward(x, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        update = triangle_multiplication(
            flat, weights, outgoing=self.outgoing, mask=three_axes(mask, x), eps=self.norm_in.eps
        )
        return shaped(update, x)


class FusedPackedOutgoing(FusedPackedTriangleMultiplication):
    """Forward of one that goes out."""

    outgoing = True


class FusedPackedIncoming(FusedPackedTriangleMultiplication):
    """Forward of one that comes in."""

    outgoing = False


def goes_out(module: Any) -> bool | None:
    """Direction of a triangle multiplication of Boltz's; None where its forward does not show it.

    It is run with random weights and offsets of zero. Where the mask leaves one row of pairs,
    that row's product with itself is in one pair if it goes out, and everywhere if it comes in.
    A forward that cannot be run here, as it wants a GPU, is taken at its class's name.
    """
    random = torch.Generator().manual_seed(0)

    def filled(name: str, shape: torch.Size) -> Tensor:
        return torch.zeros(shape) if "bias" in name else torch.randn(shape, generator=random)

    x, row = (
        torch.randn(1, 2, 2, module.p_out.weight.shape[0], generator=random),
        torch.zeros(1, 2, 2),
    )
    row[:, 0] = 1.0
    updates = [tried(module, filled, x, mask) for mask in (row, row.mT)]
    if not any(isinstance(update, Tensor) for update in updates):
        return NAMED.get(plain_class(module).__name__)
    shown = [isinstance(update, Tensor) and bool(update[0, 1, 1].any()) for update in updates]
    return None if shown[0] == shown[1] else shown[1]


def swiglu_parts(module: Any) -> tuple[Any, Any, Any, Any]:
    """Norm, gate, value and last layer of a SwiGLU transition of any of the projects."""
    if hasattr(module, "fc1"):
        return module.norm, module.fc1, module.fc2, module.fc3
    if hasattr(module, "swiglu"):
        inner = module.swiglu
        return module.layer_norm, inner.linear_a, inner.linear_b, module.linear_out
    return (
        module.layernorm1, module.linear_no_bias_a, module.linear_no_bias_b, module.linear_no_bias,
    )  # fmt: skip


def swiglu_weights(module: Any) -> SwigluWeights:
    """Parameters of a SwiGLU transition."""
    norm, gate, value, out = swiglu_parts(module)
    return SwigluWeights(norm.weight, norm.bias, gate.weight, value.weight, out.weight)


class FusedSwigluTransition(Recordable):
    """Forward of a SwiGLU transition; only OpenFold3's takes a mask."""

    def forward(self: Any, x: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's."""
        weights, mask = swiglu_weights(self), None
        if hasattr(self, "swiglu"):
            mask = positional[0] if positional else options.get("mask")
        if not (within(mask, x) and swiglu_transition_fits(x, weights)):
            return super().forward(x, *positional, **options)  # type: ignore[misc,no-any-return]
        mask = None if mask is None else mask.expand(x.shape[:-1])
        return swiglu_transition(x, weights, mask=mask, eps=swiglu_parts(self)[0].eps)


def _boltz_outer_weights(module: Any) -> OuterWeights:
    norm, out = module.norm, module.proj_o
    return OuterWeights(
        norm.weight, norm.bias, module.proj_a.weight, None, module.proj_b.weight, None, out.weight,
        None,
    )  # fmt: skip


class FusedBoltzOuterProductMean(Recordable):
    """Forward of Boltz's outer product mean: W (outer / max(count, 1)) + bias."""

    def forward(self: Any, m: Tensor, mask: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's."""
        weights, flat = _boltz_outer_weights(self), four_axes(m)
        if not (covers(mask, m) and outer_product_mean_fits(flat, weights)):
            return super().forward(m, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        rows = three_axes(mask, m)
        assert rows is not None
        update = outer_product_mean(flat, weights, rows, eps=0.0, least=1.0, norm_eps=self.norm.eps)
        update = update.view(*m.shape[:-3], *update.shape[1:])
        bias: Tensor = self.proj_o.bias
        return update + bias.to(update.dtype)


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    if has(module, *PACKED):
        return _packed_trouble(module) or _of_direction(goes_out(module))
    if has(module, "norm", "proj_a", "proj_b", "proj_o"):
        return _boltz_outer_trouble(module) or FusedBoltzOuterProductMean
    swiglu = (
        has(module, "norm", "fc1", "fc2", "fc3")
        or has(module, "layer_norm", "swiglu", "linear_out")
        or has(module, "layernorm1", "linear_no_bias_a", "linear_no_bias_b", "linear_no_bias")
    )
    if swiglu and not has(module, "linear_g"):  # OpenFold3's conditioned one has that
        return swiglu_trouble(module) or FusedSwigluTransition
    return None


def _of_direction(outgoing: bool | None) -> type[Fused] | str:
    if outgoing is None:
        return "does not show in which direction it goes"
    return FusedPackedOutgoing if outgoing else FusedPackedIncoming


def _packed_trouble(module: Any) -> str | None:
    trouble = children_trouble(module, PACKED) or signature_trouble(module, "x", "mask")
    if trouble:
        return trouble
    C, E = module.p_out.weight.shape
    return linear_trouble(
        [
            ("p_in", module.p_in, 2 * E, C, False),
            ("g_in", module.g_in, 2 * E, C, False),
            ("p_out", module.p_out, C, E, False),
            ("g_out", module.g_out, C, C, False),
        ]
    ) or norm_trouble([("norm_in", module.norm_in, C), ("norm_out", module.norm_out, E)])


def _boltz_outer_trouble(module: Any) -> str | None:
    trouble = children_trouble(module, {"norm", "proj_a", "proj_b", "proj_o"})
    trouble = trouble or signature_trouble(module, "m", "mask")
    if trouble:
        return trouble
    E, C = module.proj_a.weight.shape
    return linear_trouble(
        [
            ("proj_a", module.proj_a, E, C, False),
            ("proj_b", module.proj_b, E, C, False),
            ("proj_o", module.proj_o, None, E * E, True),
        ]
    ) or norm_trouble([("norm", module.norm, C)])


def swiglu_trouble(module: Any) -> str | None:
    """What is unknown of a SwiGLU transition, or None."""
    trouble = children_trouble(
        module,
        {"norm", "fc1", "fc2", "fc3"},
        {"layer_norm", "swiglu", "linear_out"},
        {"layernorm1", "linear_no_bias_a", "linear_no_bias_b", "linear_no_bias"},
    )
    masked = hasattr(module, "swiglu")
    if masked and not trouble:
        trouble = children_trouble(module.swiglu, {"linear_a", "linear_b"})
    trouble = trouble or signature_trouble(module, *(("x", "mask") if masked else ("x",)))
    if trouble:
        return trouble
    norm, gate, value, out = swiglu_parts(module)
    N, C = gate.weight.shape
    return linear_trouble(
        [
            ("the gate's layer", gate, N, C, False),
            ("the value's layer", value, N, C, False),
            ("the last layer", out, C, N, False),
        ]
    ) or norm_trouble([("its norm", norm, C)])


def form_of(module: nn.Module | None) -> type[Fused] | None:
    """The fused form of a module of a block, swapped already or not."""
    if module is None:
        return None
    if isinstance(module, Fused):
        return module.mixin
    answer = modules.rule(module) or rule(module)
    return answer if isinstance(answer, type) else None

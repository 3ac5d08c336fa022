"""Fused forward of the pair-weighted averaging of Boltz, OpenFold3 and Protenix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.pair_bias.op import pair_bias
from evofeed.kernels.ops.weighted_average.op import weighted_average, weighted_average_fits
from evofeed.kernels.ops.weighted_average.reference import AverageWeights
from evofeed.kernels.swap.forms import (
    children_trouble,
    has,
    linear_trouble,
    norm_trouble,
    signature_trouble,
)
from evofeed.kernels.swap.parameters import four_axes, shaped, within

# norm of m, norm of z, values, gate, pair weights, output: Boltz, OpenFold3, Protenix
AVERAGES = (
    ("norm_m", "norm_z", "proj_m", "proj_g", "proj_z", "proj_o"),
    ("layer_norm_m", "layer_norm_z", "linear_v", "linear_g", "linear_z", "linear_o"),
    ("layernorm_m", "layernorm_z", "linear_no_bias_mv", "linear_no_bias_mg", "linear_no_bias_z",
     "linear_no_bias_out"),
)  # fmt: skip


class FusedPairWeightedAveraging(Recordable):
    """Forward of all three; Protenix's takes no mask."""

    def forward(self: Any, m: Tensor, z: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's."""
        norm_m, norm_z, v, g, pair, o = _named(self, names_of(self))
        mask = positional[0] if positional else options.get("mask")
        weights = AverageWeights(norm_m.weight, norm_m.bias, v.weight, g.weight, o.weight)
        flat, pairs = four_axes(m), four_axes(z)
        late = len(positional) > 1 or flat.shape[0] != pairs.shape[0] or not within(mask, z)
        heads = pairs.new_empty((1, pair.weight.shape[0], 1, 1))
        if late or not weighted_average_fits(flat, heads, weights):
            return super().forward(m, z, *positional, **options)  # type: ignore[misc,no-any-return]
        bias = pair_bias(pairs, norm_z.weight, norm_z.bias, pair.weight, norm_z.eps).float()
        if mask is not None:
            masked = self.inf * (mask.expand(z.shape[:-1]).float() - 1)
            bias = bias + masked.reshape(pairs.shape[:-1])[:, None]
        update = weighted_average(flat, torch.softmax(bias, -1), weights, eps=norm_m.eps)
        return shaped(update, m)


def names_of(module: nn.Module) -> tuple[str, ...]:
    """What a pair-weighted averaging calls its parts."""
    return next(names for names in AVERAGES if has(module, *names))


def _named(module: nn.Module, names: tuple[str, ...]) -> list[Any]:
    return [getattr(module, name) for name in names]


def _average_trouble(module: Any, names: tuple[str, ...]) -> str | None:
    masked = names is not AVERAGES[2]
    arguments = ("m", "z", "mask") if masked else ("m", "z")
    trouble = children_trouble(module, names) or signature_trouble(module, *arguments)
    if trouble or (masked and not isinstance(getattr(module, "inf", None), float | int)):
        return trouble or "has no inf"
    norm_m, norm_z, v, g, pair, o = _named(module, names)
    (K, C), (H, C_z) = v.weight.shape, pair.weight.shape
    if K % H:
        return "has heads of several widths"
    return linear_trouble(
        [
            ("the values' layer", v, K, C, False),
            ("the gate's layer", g, K, C, False),
            ("the pairs' layer", pair, H, C_z, False),
            ("the last layer", o, C, K, False),
        ]
    ) or norm_trouble([("the norm of m", norm_m, C), ("the norm of z", norm_z, C_z)])


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    names = next((n for n in AVERAGES if has(module, *n)), None)
    if names is None or has(module, "mha"):
        return None
    return _average_trouble(module, names) or FusedPairWeightedAveraging

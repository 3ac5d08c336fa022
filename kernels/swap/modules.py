"""Fused forwards of the modules of AF2, recognised by their structure.

A rule looks at attribute names (`linear_q`, `layer_norm_in`, ...), which our
trainer and OpenFold share, so both models swap alike. Arguments that only pick
another implementation of the same maths (chunk sizes, `use_...` flags) are
accepted and ignored; what the fused op cannot take goes to the original forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.gated_attention.op import (
    gated_attention,
    gated_attention_fits,
)
from evofeed.kernels.ops.global_attention.op import (
    global_attention_fits,
    global_column_attention,
)
from evofeed.kernels.ops.outer_product_mean.op import (
    outer_product_mean,
    outer_product_mean_fits,
)
from evofeed.kernels.ops.pair_bias.op import pair_bias_fits, pair_bias_with_input
from evofeed.kernels.ops.transition.op import transition, transition_fits
from evofeed.kernels.ops.triangle_multiplication.op import (
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.swap.forms import (
    children_trouble,
    has,
    linear_trouble,
    norm_trouble,
    signature_trouble,
    turns_bias,
)
from evofeed.kernels.swap.parameters import (
    attention_weights,
    covers,
    four_axes,
    outer_weights,
    pair_layer,
    shaped,
    three_axes,
    transition_weights,
    triangle_weights,
    within,
)


def _is_transposed(x: Tensor) -> bool:
    """Whether `x` is a view of a contiguous tensor with its two position axes exchanged."""
    return not x.is_contiguous() and x.transpose(-2, -3).is_contiguous()


class FusedTriangleAttention(Recordable):
    """Forward of TriangleAttention, around either node."""

    def forward(
        self: Any, x: Tensor, mask: Tensor | None = None, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's; a transposed view is read in place as the other node."""
        weights = attention_weights(self.layer_norm, self.mha, pair_layer(self).weight)
        turned = options.get("transpose_bias", False)
        if positional and turns_bias(self):
            turned = positional[0]
        columns = not self.starting
        swap = _is_transposed(x)
        natural = x.transpose(-2, -3) if swap else x
        flat = four_axes(natural)
        if not (within(mask, x) and gated_attention_fits(flat, weights, self.mha.no_heads)):
            return super().forward(x, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        if mask is not None and swap:
            mask = mask.transpose(-1, -2)
        update = gated_attention(
            flat, weights, self.mha.no_heads, mask=three_axes(mask, natural),
            columns=columns != swap,
            turned=turned, eps=self.layer_norm.eps,
        )  # fmt: skip
        update = shaped(update, natural)
        return update.transpose(-2, -3) if swap else update


def row_attention(
    module: Any, m: Tensor, z: Tensor | None, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None] | None:
    """Fused attention along the last position axis of m, and z for later ops.

    None where it does not fit. Options (residual, drop_mask) go to `gated_attention`; of z see
    `pair_bias_with_input`.
    """
    norm, mha = module.layer_norm_m, module.mha
    weights, heads, bias = attention_weights(norm, mha), mha.no_heads, None
    swap = _is_transposed(m)
    natural = m.transpose(-2, -3) if swap else m
    flat = four_axes(natural)
    fits = within(mask, m) and gated_attention_fits(flat, weights, heads)
    if not fits or not (z is None or pair_bias_fits(four_axes(z), module.linear_z.weight)):
        return None
    if z is not None:
        scale, of_z = float((weights.q.shape[0] // heads) ** 0.5), module.layer_norm_z
        bias, pairs = pair_bias_with_input(
            four_axes(z), of_z.weight, of_z.bias, module.linear_z.weight, of_z.eps, scale
        )
        z, options = shaped(pairs, z), {**options, "bias_scale": scale}
    if mask is not None and swap:
        mask = mask.transpose(-1, -2)
    update = gated_attention(
        flat, weights, heads, bias=bias, mask=three_axes(mask, natural), columns=swap,
        eps=norm.eps, **options,
    )  # fmt: skip
    update = shaped(update, natural)
    return update.transpose(-2, -3) if swap else update, z


class FusedMSAAttention(Recordable):
    """Forward of row attention with pair bias, and of the plain one inside column attention."""

    def forward(
        self: Any, m: Tensor, z: Tensor | None = None, mask: Tensor | None = None,
        *positional: Any, **options: Any,
    ) -> Tensor:  # fmt: skip
        """As the original's."""
        made = row_attention(self, m, z, mask)
        if made is not None:
            return made[0]
        return super().forward(m, z, mask, *positional, **options)  # type: ignore[misc,no-any-return]


def global_attention(
    module: Any, m: Tensor, mask: Tensor | None, residual: bool = False
) -> Tensor | None:
    """Fused global column attention of m, or None where it does not fit."""
    norm, mha, flat = module.layer_norm_m, module.global_attention, four_axes(m)
    weights = attention_weights(norm, mha)
    if not (covers(mask, m) and global_attention_fits(flat, weights, mha.no_heads)):
        return None
    rows = m.new_ones(flat.shape[:3]) if mask is None else three_axes(mask, m)
    assert rows is not None
    update = global_column_attention(
        flat, weights, mha.no_heads, rows, residual=residual, norm_eps=norm.eps, eps=mha.eps
    )
    return shaped(update, m)


class FusedGlobalColumnAttention(Recordable):
    """Forward of global column attention."""

    def forward(
        self: Any, m: Tensor, mask: Tensor | None = None, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        update = global_attention(self, m, mask)
        if update is not None:
            return update
        return super().forward(m, mask, *positional, **options)  # type: ignore[misc,no-any-return]


class FusedTriangleMultiplication(Recordable):
    """Forward of both triangle multiplications."""

    def forward(
        self: Any, z: Tensor, mask: Tensor | None = None, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        weights, flat = triangle_weights(self), four_axes(z)
        # also changes what is returned
        inplace = options.get("inplace_safe", False) or any(positional)
        fits = within(mask, z) and triangle_multiplication_fits(flat, weights)
        if inplace or not fits:
            return super().forward(z, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        update = triangle_multiplication(
            flat,
            weights,
            outgoing=self._outgoing,
            mask=three_axes(mask, z),
            eps=self.layer_norm_in.eps,
        )
        return shaped(update, z)


class FusedTransition(Recordable):
    """Forward of both transitions."""

    def forward(self: Any, *given: Any, mask: Tensor | None = None, **options: Any) -> Tensor:
        """As the original's, whose first argument is x, z or m."""
        x: Any = given[0] if given else next(options[n] for n in "xzm" if n in options)
        weights, of_rows = transition_weights(self), given[1] if len(given) > 1 else mask
        if not (within(of_rows, x) and transition_fits(x, weights)):
            named = options if len(given) > 1 else {**options, "mask": mask}
            return super().forward(*given, **named)  # type: ignore[misc,no-any-return]
        of_rows = None if of_rows is None else of_rows.expand(x.shape[:-1])
        return transition(x, weights, mask=of_rows, eps=self.layer_norm.eps)


class FusedOuterProductMean(Recordable):
    """Forward of the outer product mean."""

    def forward(
        self: Any, m: Tensor, mask: Tensor | None = None, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        weights, flat = outer_weights(self), four_axes(m)
        if not (covers(mask, m) and outer_product_mean_fits(flat, weights)):
            return super().forward(m, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        rows = m.new_ones(flat.shape[:3]) if mask is None else three_axes(mask, m)
        assert rows is not None
        update = outer_product_mean(flat, weights, rows, eps=self.eps, norm_eps=self.layer_norm.eps)
        return update.view(*m.shape[:-3], *update.shape[1:])


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    if isinstance(module, torch.jit.ScriptModule):
        return None
    gated = has(module, "mha") and has(module.mha, "linear_q", "linear_g")
    if gated and has(module, "layer_norm") and hasattr(module, "starting"):
        return triangle_attention_trouble(module) or FusedTriangleAttention
    if gated and has(module, "layer_norm_m"):
        return _msa_attention_trouble(module) or FusedMSAAttention
    if has(module, "layer_norm_m", "global_attention"):
        trouble = children_trouble(module, {"layer_norm_m", "global_attention"})
        return trouble or signature_trouble(module, "m", "mask") or FusedGlobalColumnAttention
    if has(module, "layer_norm_in", "layer_norm_out", "linear_z", "linear_g"):
        return triangle_multiplication_trouble(module) or FusedTriangleMultiplication
    if has(module, "layer_norm", "linear_1", "linear_2", "linear_out"):
        return _outer_trouble(module) or FusedOuterProductMean
    if has(module, "layer_norm", "linear_1", "linear_2") and isinstance(
        getattr(module, "relu", None), nn.ReLU
    ):
        return _transition_trouble(module) or FusedTransition
    return None


def _attention_trouble(mha: Any, channels: int, biases: bool | None) -> str | None:
    """What is unknown of q, k, v, gate and output of an attention over so many channels."""
    layers = ("linear_q", "linear_k", "linear_v", "linear_g", "linear_o")
    trouble = children_trouble(mha, layers)
    if trouble:
        return trouble
    width = mha.linear_q.weight.shape[0]
    if not isinstance(getattr(mha, "no_heads", None), int) or width % mha.no_heads:
        return "has no number of heads"
    trouble = linear_trouble(
        (n, getattr(mha, n), width, channels, biases if n == "linear_g" else False)
        for n in layers[:-1]
    )
    return trouble or linear_trouble([("linear_o", mha.linear_o, channels, width, biases)])


def triangle_attention_trouble(module: Any) -> str | None:
    """What is unknown of a triangle attention, or None."""
    trouble = children_trouble(
        module, {"layer_norm", "linear", "mha"}, {"layer_norm", "linear_z", "mha"}
    )
    known = ("x", "mask", "transpose_bias") if turns_bias(module) else ("x", "mask")
    trouble = trouble or signature_trouble(module, *known)
    if trouble or not isinstance(module.starting, bool):
        return trouble or "does not say around which node"
    pair = pair_layer(module)
    C = pair.weight.shape[-1]
    return (
        _attention_trouble(module.mha, C, None)
        or linear_trouble([("the pair bias's layer", pair, module.mha.no_heads, C, False)])
        or norm_trouble([("layer_norm", module.layer_norm, C)])
    )


def _msa_attention_trouble(module: Any) -> str | None:
    with_pairs = {"layer_norm_m", "layer_norm_z", "linear_z", "mha"}
    trouble = children_trouble(module, {"layer_norm_m", "mha"}, with_pairs)
    trouble = trouble or _attention_trouble(module.mha, module.mha.linear_q.weight.shape[-1], True)
    return trouble or signature_trouble(module, "m", "z", "mask")


def triangle_multiplication_trouble(module: Any) -> str | None:
    """What is unknown of a triangle multiplication with OpenFold's names, or None."""
    both = {"layer_norm_in", "layer_norm_out", "linear_z", "linear_g"}
    apart = ("linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g")
    packed = ("linear_ab_p", "linear_ab_g")
    trouble = children_trouble(module, both | {*apart}, both | {*packed})
    trouble = trouble or signature_trouble(module, "z", "mask")
    direction = getattr(module, "_outgoing", None)
    if trouble or not isinstance(direction, bool):
        return trouble or "does not say in which direction it goes"
    C, E = module.linear_z.weight.shape
    names, width = (packed, 2 * E) if has(module, "linear_ab_p") else (apart, E)
    biased = module.linear_z.bias is not None
    return linear_trouble(
        [
            *((name, getattr(module, name), width, C, biased) for name in names),
            ("linear_g", module.linear_g, C, C, biased),
        ]
    ) or norm_trouble(
        [("layer_norm_in", module.layer_norm_in, C), ("layer_norm_out", module.layer_norm_out, E)]
    )


def _outer_trouble(module: Any) -> str | None:
    trouble = children_trouble(module, {"layer_norm", "linear_1", "linear_2", "linear_out"})
    trouble = trouble or signature_trouble(module, "m", "mask")
    if trouble or not isinstance(getattr(module, "eps", None), float):
        return trouble or "has no eps"
    E, C = module.linear_1.weight.shape
    biased = module.linear_1.bias is not None
    return linear_trouble(
        [
            ("linear_1", module.linear_1, E, C, biased),
            ("linear_2", module.linear_2, E, C, biased),
            ("linear_out", module.linear_out, None, E * E, True),
        ]
    ) or norm_trouble([("layer_norm", module.layer_norm, C)])


def _transition_trouble(module: Any) -> str | None:
    trouble = children_trouble(module, {"layer_norm", "linear_1", "linear_2"})
    trouble = trouble or signature_trouble(module, "x|z|m", "mask")
    if trouble:
        return trouble
    N, C = module.linear_1.weight.shape
    return linear_trouble(
        [("linear_1", module.linear_1, N, C, True), ("linear_2", module.linear_2, C, N, True)]
    ) or norm_trouble([("layer_norm", module.layer_norm, C)])

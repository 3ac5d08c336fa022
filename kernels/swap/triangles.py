"""Triangle attention and multiplication of AF2, Boltz, OpenFold3 and Protenix.

Arguments that only select another implementation of the same maths (chunk sizes, `use_...` flags)
are accepted and ignored; calls that the fused op does not support run the original forward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.ops.gated_attention.op import gated_attention, gated_attention_fits
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.triangle_multiplication.op import (
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.swap.forms import Form, Linear, Norm, Part, parts_of, plain_class
from evofeed.kernels.swap.parameters import (
    attention_weights,
    four_axes,
    halves,
    mask_fits,
    shaped,
    three_axes,
)


def attention_parts(channels: str) -> dict[str, Part]:
    """The layers of an `mha` with OpenFold's names; gate and output may have biases."""
    return {
        **{f"mha.linear_{name}": Linear("hd", channels) for name in "qkv"},
        "mha.linear_g": Linear("hd", channels, None), "mha.linear_o": Linear(channels, "hd", None),
    }  # fmt: skip


def fused_attention(
    x: Tensor, weights: AttentionWeights, heads: int, mask: Tensor | None, *,
    columns: bool = False, **options: Any,
) -> Tensor | None:  # fmt: skip
    """`gated_attention` of x, or None; a view with its positions transposed is read in place."""
    transposed = not x.is_contiguous() and x.transpose(-2, -3).is_contiguous()
    natural = x.transpose(-2, -3) if transposed else x
    flat = four_axes(natural)
    if not (mask_fits(mask, x) and gated_attention_fits(flat, weights, heads)):
        return None
    if mask is not None and transposed:
        mask = mask.transpose(-1, -2)
    columns = columns != transposed
    mask = three_axes(mask, natural)
    update = gated_attention(flat, weights, heads, mask=mask, columns=columns, **options)
    update = shaped(update, natural)
    return update.transpose(-2, -3) if transposed else update


def pair_layer(module: Any) -> Any:
    """The layer that computes a triangle attention's bias (OpenFold3: `linear_z`)."""
    return module.linear if hasattr(module, "linear") else module.linear_z


def attend(
    module: Any, x: Tensor, mask: Tensor | None = None, transpose_bias: bool = False, **options: Any
) -> Tensor | None:
    """Triangle attention around the starting or the ending node."""
    weights = attention_weights(module.layer_norm, module.mha, pair_layer(module).weight)
    return fused_attention(
        x, weights, module.mha.no_heads, mask, columns=not module.starting, turned=transpose_bias,
        eps=module.layer_norm.eps,
    )  # fmt: skip


for _pair in ("linear", "linear_z"):
    Form(
        attend,
        {"layer_norm": Norm("z"), **attention_parts("z"), _pair: Linear("h", "z")},
        ("x", "mask", "transpose_bias?"), ("NNz", "NN"), heads="mha.no_heads",
        flags={"starting": bool},
    )  # fmt: skip


def triangle_weights(module: Any) -> TriangleWeights:
    """Parameters of a triangle multiplication, with separate or packed projections a and b."""
    norm, *projections, out, z, g = parts_of(module)
    parts: list[Any] = [t for layer in projections for t in (layer.weight, layer.bias)]
    if len(projections) == 2:
        parts = [t for half in zip(*map(halves, parts), strict=True) for t in half]
    return TriangleWeights(  # type: ignore[call-arg]
        norm.weight, norm.bias, *parts, out.weight, out.bias, z.weight, z.bias, g.weight, g.bias,
    )  # fmt: skip


def multiply(
    module: Any, z: Tensor, mask: Tensor | None = None, outgoing: bool | None = None,
    extra_args: tuple[Any, ...] = (), inplace_safe: bool = False, **options: Any,
) -> Tensor | None:  # fmt: skip
    """Triangle multiplication; None with `inplace_safe`, which changes the returned value too."""
    weights, flat = triangle_weights(module), four_axes(z)
    fits = mask_fits(mask, z) and triangle_multiplication_fits(flat, weights)
    if inplace_safe or any(extra_args) or not fits:
        return None
    update = triangle_multiplication(
        flat, weights, outgoing=module._outgoing if outgoing is None else outgoing,
        mask=three_axes(mask, z), eps=parts_of(module)[0].eps,
    )  # fmt: skip
    return shaped(update, z)


_SEPARATE = ("linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g")
for _layers, _width in ((_SEPARATE, "e"), (("linear_ab_p", "linear_ab_g"), "2e")):
    Form(
        multiply,
        {"layer_norm_in": Norm("z"), **{name: Linear(_width, "z", None) for name in _layers},
         "layer_norm_out": Norm("e"), "linear_z": Linear("z", "e", None),
         "linear_g": Linear("z", "z", None)},
        ("z", "mask"), ("NNz", "NN"), flags={"_outgoing": bool},
    )  # fmt: skip


def _unless_named(name: str) -> Any:
    def untried(module: nn.Module) -> str | None:
        named = plain_class(module).__name__ == name
        return None if named else "does not tell its direction, outgoing or incoming"

    return untried


for _direction in ("Outgoing", "Incoming"):  # Boltz's have no attribute for it: the trial decides
    Form(
        multiply,
        {"norm_in": Norm("z"), "p_in": Linear("2e", "z"), "g_in": Linear("2e", "z"),
         "norm_out": Norm("e"), "p_out": Linear("z", "e"), "g_out": Linear("z", "z")},
        ("z|x", "mask"), ("NNz", "NN"), options={"outgoing": _direction == "Outgoing"},
        untried=_unless_named(f"TriangleMultiplication{_direction}"),
    )  # fmt: skip

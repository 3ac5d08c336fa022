"""Attention, pair-weighted averages and outer product mean of MSAs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.op import gated_attention_fits
from evofeed.kernels.ops.global_attention.op import global_attention_fits, global_column_attention
from evofeed.kernels.ops.outer_product_mean.op import (
    Others,
    outer_product_mean,
    outer_product_mean_fits,
    outer_product_mean_with_input,
)
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.pair_bias.op import pair_bias, pair_bias_fits, pair_bias_with_input
from evofeed.kernels.ops.weighted_average.op import weighted_average, weighted_average_fits
from evofeed.kernels.ops.weighted_average.reference import AverageWeights
from evofeed.kernels.swap.forms import Form, Linear, Norm, Part, parts_of
from evofeed.kernels.swap.parameters import (
    attention_weights,
    covers,
    four_axes,
    mask_fits,
    shaped,
    three_axes,
)
from evofeed.kernels.swap.triangles import attention_parts, fused_attention


def row_attention(
    module: Any, m: Tensor, z: Tensor | None, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None] | None:
    """Fused attention along the last position axis of m, and z for later ops; or None.

    Options (residual, drop_mask) go to `gated_attention`; for z see `pair_bias_with_input`.
    """
    norm, mha = module.layer_norm_m, module.mha
    weights, heads = attention_weights(norm, mha), mha.no_heads
    if z is not None:
        fits = mask_fits(mask, m) and gated_attention_fits(four_axes(m), weights, heads)
        if not (fits and pair_bias_fits(four_axes(z), module.linear_z.weight)):
            return None
        scale, norm_z = float((weights.q.shape[0] // heads) ** 0.5), module.layer_norm_z
        bias, pairs = pair_bias_with_input(
            four_axes(z), norm_z.weight, norm_z.bias, module.linear_z.weight, norm_z.eps, scale
        )
        z, options = shaped(pairs, z), {**options, "bias": bias, "bias_scale": scale}
    update = fused_attention(m, weights, heads, mask, eps=norm.eps, **options)
    return None if update is None else (update, z)


def run_row_attention(
    module: Any, m: Tensor, z: Tensor | None = None, mask: Tensor | None = None, **options: Any
) -> Tensor | None:
    """Row attention with pair bias, or the attention without bias inside column attention."""
    result = row_attention(module, m, z, mask)
    return None if result is None else result[0]


_ROWS: dict[str, Part] = {"layer_norm_m": Norm("m"), **attention_parts("m")}
_BIAS: dict[str, Part] = {"layer_norm_z": Norm("z"), "linear_z": Linear("h", "z")}
Form(run_row_attention, _ROWS, ("m", "z", "mask"), ("SNm", "", "SN"), heads="mha.no_heads")
Form(
    run_row_attention, {**_ROWS, **_BIAS}, ("m", "z", "mask"), ("SNm", "NNz", "SN"),
    heads="mha.no_heads",
)  # fmt: skip


def run_global_attention(
    module: Any, m: Tensor, mask: Tensor | None = None, residual: bool = False, **options: Any
) -> Tensor | None:
    """Global column attention."""
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


Form(
    run_global_attention,
    {"layer_norm_m": Norm("m"), "global_attention.linear_q": Linear("hd", "m"),
     "global_attention.linear_k": Linear("d", "m"), "global_attention.linear_v": Linear("d", "m"),
     "global_attention.linear_g": Linear("hd", "m", True),
     "global_attention.linear_o": Linear("m", "hd", True)},
    ("m", "mask"), ("SNm", "SN"), heads="global_attention.no_heads",
)  # fmt: skip


def run_weighted_average(
    module: Any, m: Tensor, z: Tensor, mask: Tensor | None = None, **options: Any
) -> Tensor | None:
    """Pair-weighted averaging."""
    norm_m, norm_z, pair, v, g, o = parts_of(module)
    weights = AverageWeights(norm_m.weight, norm_m.bias, v.weight, g.weight, o.weight)
    flat, pairs = four_axes(m), four_axes(z)
    heads = pairs.new_empty((1, pair.weight.shape[0], 1, 1))
    fits = flat.shape[0] == pairs.shape[0] and mask_fits(mask, z)
    if not (fits and weighted_average_fits(flat, heads, weights)):
        return None
    bias = pair_bias(pairs, norm_z.weight, norm_z.bias, pair.weight, norm_z.eps).float()
    if mask is not None:
        mask_bias = module.inf * (mask.expand(z.shape[:-1]).float() - 1)
        bias = bias + mask_bias.reshape(pairs.shape[:-1])[:, None]
    update = weighted_average(flat, torch.softmax(bias, -1), weights, eps=norm_m.eps)
    return shaped(update, m)


for _masked, _names in (
    (True, ("norm_m", "norm_z", "proj_z", "proj_m", "proj_g", "proj_o")),
    (True, ("layer_norm_m", "layer_norm_z", "linear_z", "linear_v", "linear_g", "linear_o")),
    (False, ("layernorm_m", "layernorm_z", "linear_no_bias_z", "linear_no_bias_mv",
             "linear_no_bias_mg", "linear_no_bias_out")),
):  # fmt: skip
    Form(
        run_weighted_average,
        dict(zip(_names, (Norm("m"), Norm("z"), Linear("h", "z"), Linear("hd", "m"),
                          Linear("hd", "m"), Linear("m", "hd")), strict=True)),
        ("m", "z", "mask") if _masked else ("m", "z"),
        ("SNm", "NNz", "NN") if _masked else ("SNm", "NNz"),
        flags={"inf": float | int} if _masked else {},
    )  # fmt: skip


def outer_product_weights(module: Any, divides_bias: bool = True) -> OuterWeights:
    """Parameters of an outer product mean."""
    norm, a, b, out = parts_of(module)
    return OuterWeights(
        norm.weight, norm.bias, a.weight, a.bias, b.weight, b.bias, out.weight,
        out.bias if divides_bias else None,
    )  # fmt: skip


def add_outer_product(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, others: Others | None = None
) -> tuple[Tensor, Tensor]:
    """z plus the outer product mean of m, which must be supported; and m for later ops.

    With `others` for columns of the MSA and rows of the pairs: see `outer_product_mean_with_input`.
    """
    rows = three_axes(mask)
    assert rows is not None
    pairs, columns = outer_product_mean_with_input(
        four_axes(m), outer_product_weights(module), rows, z=four_axes(z), eps=module.eps,
        norm_eps=module.layer_norm.eps, others=others,
    )  # fmt: skip
    return shaped(pairs, z), shaped(columns, m)


def run_outer_product_mean(
    module: Any, m: Tensor, mask: Tensor | None = None, divides_bias: bool = True, **options: Any
) -> Tensor | None:
    """Outer product mean; Boltz's is W (outer / max(count, 1)) + bias."""
    weights, flat = outer_product_weights(module, divides_bias), four_axes(m)
    if not (covers(mask, m) and outer_product_mean_fits(flat, weights)):
        return None
    rows = m.new_ones(flat.shape[:3]) if mask is None else three_axes(mask, m)
    assert rows is not None
    norm, *_, out = parts_of(module)
    update = outer_product_mean(
        flat, weights, rows, eps=module.eps if divides_bias else 0.0,
        least=0.0 if divides_bias else 1.0, norm_eps=norm.eps,
    )  # fmt: skip
    update = update.view(*m.shape[:-3], *update.shape[1:])
    bias: Tensor = out.bias
    return update if divides_bias else update + bias.to(update.dtype)


Form(
    run_outer_product_mean,
    {"layer_norm": Norm("m"), "linear_1": Linear("e", "m", None),
     "linear_2": Linear("e", "m", None), "linear_out": Linear("z", "ee", True)},
    ("m", "mask"), ("SNm", "SN"), flags={"eps": float},
)  # fmt: skip
Form(
    run_outer_product_mean,
    {"norm": Norm("m"), "proj_a": Linear("e", "m"), "proj_b": Linear("e", "m"),
     "proj_o": Linear("z", "ee", True)},
    ("m", "mask"), ("SNm", "SN"), options={"divides_bias": False},
)  # fmt: skip

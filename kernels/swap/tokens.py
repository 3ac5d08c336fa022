"""The single track and the diffusion transformer of Boltz, OpenFold3 and Protenix.

Attention of tokens with pair bias, adaptive norms, conditioned transitions, and blocks of them.
Noise copies share one z and so one bias. Attention in windows of atoms is not swapped. A swapped
block calls the ops directly with its modules' parameters: forward hooks on the modules inside do
not fire.

Letters: B batch, R copies that share a bias, N tokens, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from evofeed.kernels.ops.adaptive_norm.op import adaptive_norm, adaptive_norm_fits
from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights
from evofeed.kernels.ops.attention.op import MAX_HEAD_WIDTH, biased_attention
from evofeed.kernels.ops.conditioned_attention.op import (
    conditioned_attention,
    conditioned_attention_fits,
)
from evofeed.kernels.ops.conditioned_attention.reference import ConditionedAttentionWeights
from evofeed.kernels.ops.conditioned_transition.op import (
    conditioned_transition,
    conditioned_transition_fits,
)
from evofeed.kernels.ops.conditioned_transition.reference import ConditionedWeights
from evofeed.kernels.ops.pair_bias.op import pair_bias
from evofeed.kernels.runtime.backend import usable
from evofeed.kernels.swap.forms import Form, Linear, Norm, Part, parts_of
from evofeed.kernels.swap.parameters import expands_to, four_axes, halves, mask_fits, same_dtype
from evofeed.kernels.swap.transitions import add_transition

ATOMS = 1024
"""Recorded blocks pad atoms to multiples of this, masked: their number differs between crops."""

# --- adaptive norms and conditioned transitions ---------------------------------------------------


def adaptive_weights(module: Any) -> AdaptiveWeights:
    """Parameters of an adaptive norm."""
    _, norm, gate, shift = parts_of(module)
    return AdaptiveWeights(norm.weight, gate.weight, gate.bias, shift.weight)


def adaptive_eps(module: Any) -> float:
    """The eps of the two norms of an adaptive norm."""
    return parts_of(module)[1].eps  # type: ignore[no-any-return]


def run_adaptive_norm(module: Any, a: Tensor, s: Tensor, **options: Any) -> Tensor | None:
    """An adaptive norm."""
    weights = adaptive_weights(module)
    if not (same_dtype(a, s) and adaptive_norm_fits(a, s, weights)):
        return None
    return adaptive_norm(a, s, weights, eps=adaptive_eps(module))


for _names in (
    ("a_norm", "s_norm", "s_scale", "s_bias"),
    ("layer_norm_a", "layer_norm_s", "linear_g", "linear_s"),
    ("layernorm_a", "layernorm_s", "linear_s", "linear_nobias_s"),
):
    Form(
        run_adaptive_norm,
        dict(zip(_names, (Norm("a", False, False), Norm("s", True, False), Linear("a", "s", True),
                          Linear("a", "s")), strict=True)),
        ("a", "s"), ("Na", "Ns"), recordable=False,
    )  # fmt: skip


def run_conditioned_transition(
    module: Any, a: Tensor, s: Tensor, mask: Tensor | None = None, residual: bool = False,
    **options: Any,
) -> Tensor | None:  # fmt: skip
    """A conditioned transition; Boltz packs the first two hidden layers and has a third."""
    norm, first, second, out, last, *_ = parts_of(module)
    silu, value, factor = first.weight, second.weight, None
    if hasattr(module, "swish_gate"):
        (value, silu), factor = halves(silu), value
    w = adaptive_weights(norm)
    weights = ConditionedWeights(
        w.norm_weight, w.gate, w.gate_bias, w.shift, silu, value, out.weight, last.weight,
        last.bias, factor,
    )  # fmt: skip
    if not (mask_fits(mask, a) and expands_to(s.shape[:-1], a.shape[:-1])):
        return None
    s = s if s.shape[:-1] == a.shape[:-1] else s.expand(*a.shape[:-1], -1)
    if not (same_dtype(a, s) and conditioned_transition_fits(a, s, weights)):
        return None
    rows = None if mask is None else mask.expand(a.shape[:-1])
    return conditioned_transition(
        a, s, weights, mask=rows, residual=residual, eps=adaptive_eps(norm)
    )


_OUT, _LAST = Linear("a", "n"), Linear("a", "s", True)
_TRANSITIONS: tuple[tuple[tuple[str, ...], dict[str, Part]], ...] = (
    (("a", "s"), {
        "adaln": run_adaptive_norm, "swish_gate.0": Linear("2n", "a"), "a_to_b": Linear("n", "a"),
        "b_to_a": _OUT, "output_projection.0": _LAST, "swish_gate.1": None,
        "output_projection.1": None,
    }),
    (("a", "s", "mask"), {
        "layer_norm": run_adaptive_norm, "swiglu.linear_a": Linear("n", "a"),
        "swiglu.linear_b": Linear("n", "a"), "linear_out": _OUT, "linear_g": _LAST,
    }),
    (("a", "s"), {
        "adaln": run_adaptive_norm, "linear_nobias_a1": Linear("n", "a"),
        "linear_nobias_a2": Linear("n", "a"), "linear_nobias_b": _OUT, "linear_s": _LAST,
    }),
)  # fmt: skip
for _arguments, _parts in _TRANSITIONS:
    Form(
        run_conditioned_transition, _parts, _arguments, ("Na", "Ns", "N")[: len(_arguments)],
        recordable=False,
    )  # fmt: skip


# --- attention with pair bias ---------------------------------------------------------------------


def shared_bias(a: torch.Size, z: torch.Size) -> tuple[int, int] | None:
    """B and R of attention with the leading axes `a`, whose bias has the leading axes `z`.

    None if the kernels do not support this sharing of the bias.
    """
    if a == z:
        return math.prod(a), 1
    if a and len(a) == len(z) and z[-1] == 1 and a[:-1] == z[:-1]:
        return math.prod(a[:-1]), a[-1]
    if len(z) <= len(a) and math.prod(z) == 1:
        return 1, math.prod(a)
    return None


def _bias_of(z: Tensor, norm: Any, layer: Any, channels_first: bool = False) -> Tensor:
    """`[B, H, N, N]` from pairs `[..., N, N, C]`.

    A missing bias of the norm counts as zeros. Without a norm the pairs are already normalised;
    with the channels first too, except for the norm's weight.
    """
    if channels_first:
        return conv2d(four_axes(z), (layer.weight * norm.weight)[:, :, None, None])
    if norm is None:
        return layer(four_axes(z)).movedim(-1, 1)  # type: ignore[no-any-return]
    offset = norm.weight.new_zeros(norm.weight.shape) if norm.bias is None else norm.bias
    return pair_bias(four_axes(z), norm.weight, offset, layer.weight, norm.eps)


def run_boltz_attention(
    module: Any, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int = 1,
    **options: Any,
) -> Tensor | None:  # fmt: skip
    """Boltz-2's `AttentionPairBias`: copies are consecutive in the batch."""
    heads, width = module.num_heads, module.proj_q.weight.shape[0] // module.num_heads
    copies = s.dim() == 3 and s.shape[0] == z.shape[0] * multiplicity and s.shape == k_in.shape
    fits = width <= MAX_HEAD_WIDTH and s.dtype is not torch.float64 and usable(s, z, mask, k_in)
    if not (copies and fits and mask_fits(mask, s)):
        return None
    inner = list(module.proj_z.children())
    bias = _bias_of(z, *inner[:2]) if inner else module.proj_z(z)
    dtype, rows = module.proj_q.weight.dtype, (z.shape[0], multiplicity, s.shape[1])
    wide = s.to(dtype)
    keys = wide if k_in is s else k_in.to(dtype)
    q, k, v = (
        layer(x).float().reshape(*rows, heads, width)
        for layer, x in ((module.proj_q, wide), (module.proj_k, keys), (module.proj_v, keys))
    )
    with torch.autocast(s.device.type, enabled=False):
        keep = mask.expand(s.shape[:-1]).reshape(rows)
        o = biased_attention(q, k, v, bias.float(), keep).reshape(*s.shape[:-1], -1).to(s.dtype)
    out: Tensor = module.proj_o(torch.sigmoid(module.proj_g(s)) * o)
    return out


def run_boltz_1_attention(
    module: Any, s: Tensor, z: Tensor, mask: Tensor, multiplicity: int = 1, to_keys: Any = None,
    model_cache: Any = None, **options: Any,
) -> Tensor | None:  # fmt: skip
    """Boltz-1's `AttentionPairBias` over all tokens, with an optional norm."""
    if to_keys is not None or model_cache is not None:
        return None
    s = module.norm_s(s) if module.initial_norm else s
    return run_boltz_attention(module, s, z, mask, s, multiplicity)


_BOLTZ: dict[str, Part] = {
    **{f"proj_{name}": Linear("hd", "a", name == "q") for name in "qkvg"},
    "proj_o": Linear("a", "hd"),
}
_BOLTZ_ARGUMENTS = ("s", "z", "mask", "k_in", "multiplicity")
_OF_PAIRS: dict[str, Part] = {
    **_BOLTZ, "proj_z.0": Norm("z", bias=None), "proj_z.1": Linear("h", "z"), "proj_z.2": None,
}  # fmt: skip
Form(run_boltz_attention, _OF_PAIRS, _BOLTZ_ARGUMENTS, ("Na", "NNz", "N", "Na"), heads="num_heads")
for _normed in (True, False):
    Form(
        run_boltz_1_attention, _OF_PAIRS | ({"norm_s": Norm("a")} if _normed else {}),
        ("s", "z", "mask", "multiplicity", "to_keys", "model_cache"), ("Na", "NNz", "N"),
        heads="num_heads", flags={"initial_norm": _normed},
    )  # fmt: skip
Form(
    run_boltz_attention, {**_BOLTZ, "proj_z": None}, _BOLTZ_ARGUMENTS, ("Na", "NNh", "N", "Na"),
    heads="num_heads",
)  # fmt: skip


def token_weights(norm: Any, layers: Sequence[Any], last: Any) -> ConditionedAttentionWeights:
    """Parameters of an attention of tokens with the `layers` q, k, v, g and o."""
    q, k, v, g, o = layers
    parts = {"q": q.weight, "q_bias": q.bias, "k": k.weight, "v": v.weight, "g": g.weight}
    parts["o"] = o.weight
    if last is None:
        weight, bias = norm.weight, norm.bias
        return ConditionedAttentionWeights(norm_weight=weight, norm_bias=bias, **parts)
    w = adaptive_weights(norm)
    return ConditionedAttentionWeights(
        norm_weight=w.norm_weight, gate=w.gate, gate_bias=w.gate_bias, shift=w.shift, **parts,
        last=last.weight, last_bias=last.bias,
    )  # fmt: skip


def run_token_attention(
    module: Any, a: Tensor, z: Tensor, s: Tensor | None = None, mask: Tensor | None = None,
    residual: bool = False, extra_args: tuple[Any, ...] = (), **options: Any,
) -> Tensor | None:  # fmt: skip
    """Attention over all tokens of OpenFold3 and Protenix, not in place.

    With Protenix's `enable_efficient_fusion` pairs are already normalised, channels first.
    """
    protenix = hasattr(module, "attention")
    channels_first = bool(options.get("enable_efficient_fusion"))
    if extra_args or (protenix and (options.get("n_queries") or options.get("n_keys"))):
        return None
    norm, *layers, pair = parts_of(module)[:7]
    norm_z = getattr(module, "layernorm_z" if protenix else "layer_norm_z", None)
    last = getattr(module, "linear_a_last" if protenix else "linear_ada_out", None)
    heads = module.attention.num_heads if protenix else module.mha.no_heads
    sizes = shared_bias(a.shape[:-2], z.shape[:-3])
    if sizes is None or not usable(a, z, mask) or not mask_fits(mask, a):
        return None
    weights, rows = token_weights(norm, layers, last), (*sizes, a.shape[-2])
    tokens, s_rows = a.reshape(*rows, -1), None
    if last is not None:
        if s is None or not same_dtype(a, s) or not expands_to(s.shape[:-1], a.shape[:-1]):
            return None
        s_rows = s.expand(*a.shape[:-1], -1).reshape(*rows, -1)
    if not conditioned_attention_fits(tokens, s_rows, weights, heads):
        return None
    keys = None if mask is None else mask.expand(a.shape[:-1]).reshape(rows)
    out = conditioned_attention(
        tokens, s_rows, weights, heads, bias=_bias_of(z, norm_z, pair, channels_first), mask=keys,
        residual=residual, eps=norm.eps if last is None else adaptive_eps(norm),
    )  # fmt: skip
    return out.reshape(a.shape)


def _token_parts(
    norm: str, mha: str, pair: str, norm_z: str = "", last: str = ""
) -> dict[str, Part]:
    """Parts of an attention of tokens; with a last gate, its norm is adaptive."""
    layers: dict[str, Part] = {norm: run_adaptive_norm if last else Norm("a")}
    layers |= {f"{mha}.linear_{name}": Linear("hd", "a", name == "q") for name in "qkvg"}
    layers |= {f"{mha}.linear_o": Linear("a", "hd"), pair: Linear("h", "z")}
    layers |= {norm_z: Norm("z", bias=None)} if norm_z else {}
    return layers | ({last: Linear("a", "s", True)} if last else {})


_OPENFOLD3 = ("layer_norm_a", "mha", "linear_z")
_PROTENIX = ("layernorm_a", "attention", "linear_nobias_z", "layernorm_z")
_IGNORED = ("n_queries", "n_keys", "inplace_safe", "chunk_size", "enable_efficient_fusion?")
for _more, _arguments, _inputs in (
    (("layer_norm_z",), ("a", "z", "s", "mask"), ("Na", "NNz", "", "N")),
    (("layer_norm_z",), ("a", "z", "mask"), ("Na", "NNz", "N")),  # since 0.5
    (("layer_norm_z", "linear_ada_out"), ("a", "z", "s", "mask"), ("Na", "NNz", "Ns", "N")),
    (("", "linear_ada_out"), ("a", "z", "s", "mask"), ("Na", "NNz", "Ns", "N")),  # since 0.5
):
    Form(
        run_token_attention, _token_parts(*_OPENFOLD3, *_more), _arguments, _inputs,
        heads="mha.no_heads",
    )  # fmt: skip
for _last, _s_axes in (("", ""), ("linear_a_last", "Ns")):
    Form(
        run_token_attention, _token_parts(*_PROTENIX, _last), ("a", "s", "z", *_IGNORED),
        ("Na", _s_axes, "NNz"), heads="attention.num_heads", flags={"cross_attention_mode": False},
    )  # fmt: skip


# --- blocks of the diffusion transformer ----------------------------------------------------------


def run_diffusion_block(
    block: Any, a: Tensor, s: Tensor, z: Tensor, mask: Tensor | None = None,
    extra_args: tuple[Any, ...] = (), _mask_trans: bool = True, **options: Any,
) -> Tensor | None:  # fmt: skip
    """OpenFold3's `DiffusionTransformerBlock` over tokens."""
    attention = block.attention_pair_bias
    attended = run_token_attention(attention, a, z, s, mask, residual=True, extra_args=extra_args)
    if attended is None:
        return None
    return add_transition(block.conditioned_transition, attended, mask if _mask_trans else None, s)


def run_protenix_diffusion_block(
    block: Any, a: Tensor, s: Tensor, z: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Protenix's `DiffusionTransformerBlock` over all tokens; returns s and z too."""
    attended = run_token_attention(block.attention_pair_bias, a, z, s, residual=True, **options)
    if attended is None:
        return None
    return add_transition(block.conditioned_transition_block, attended, None, s), s, z


def run_boltz_diffusion_layer(
    layer: Any, a: Tensor, s: Tensor, bias: Tensor, mask: Tensor, to_keys: Any = None,
    multiplicity: int = 1, **options: Any,
) -> Tensor | None:  # fmt: skip
    """Boltz's `DiffusionTransformerLayer` over all tokens, with a given bias.

    Boltz's attention is float32 under autocast too: it is one op only without autocast.
    """
    copies = a.dim() == 3 and a.shape[0] == bias.shape[0] * multiplicity
    if to_keys is not None or not copies or not usable(a, s, bias, mask):
        return None
    attended = _boltz_attention(layer, a, s, bias, mask, multiplicity)
    if attended is None:
        b = layer.adaln(a, s)
        b = layer.pair_bias_attn(s=b, z=bias, mask=mask, multiplicity=multiplicity, k_in=b)
        attended = a + layer.output_projection(s) * b
    return layer.post_lnorm(add_transition(layer.transition, attended, None, s))  # type: ignore[no-any-return]


def _boltz_attention(
    layer: Any, a: Tensor, s: Tensor, bias: Tensor, mask: Tensor, multiplicity: int
) -> Tensor | None:
    """a plus its gated attention in float32, or None if not supported."""
    inner, rows = layer.pair_bias_attn, (bias.shape[0], multiplicity, a.shape[1])
    layers = (inner.proj_q, inner.proj_k, inner.proj_v, inner.proj_g, inner.proj_o)
    weights = token_weights(layer.adaln, layers, layer.output_projection[0])
    if torch.is_autocast_enabled(a.device.type) or a.dtype is not torch.float32:
        return None
    if not (mask_fits(mask, a) and expands_to(s.shape[:-1], a.shape[:-1])):
        return None
    tokens, s_rows = a.reshape(*rows, -1), s.expand(*a.shape[:-1], -1).reshape(*rows, -1)
    if not conditioned_attention_fits(tokens, s_rows, weights, inner.num_heads):
        return None
    keys = mask.expand(a.shape[:-1]).reshape(rows)
    out = conditioned_attention(
        tokens, s_rows, weights, inner.num_heads, bias=inner.proj_z(bias).float(), mask=keys,
        residual=True, eps=adaptive_eps(layer.adaln),
    )  # fmt: skip
    return out.reshape(a.shape)


Form(
    run_diffusion_block,
    {"attention_pair_bias": run_token_attention,
     "conditioned_transition": run_conditioned_transition},
    ("a", "s", "z", "mask"), ("Na", "Ns", "NNz", "N"),
)  # fmt: skip
Form(  # the same block over windows of atoms
    None,
    {**{f"attention_pair_bias.layer_norm_a_{name}": run_adaptive_norm for name in "qk"},
     **{f"attention_pair_bias.{name}": nn.Module for name in ("linear_ada_out", "linear_z", "mha")},
     "conditioned_transition": run_conditioned_transition},
    ("a", "s", "z", "mask"),
)  # fmt: skip


def pad_atoms(
    stack: Any, a: Tensor, s: Tensor, z: Tensor, mask: Tensor | None = None,
    extra_args: tuple[Any, ...] = (), **options: Any,
) -> Tensor | None:  # fmt: skip
    """OpenFold3's `DiffusionTransformer` of atoms, padded if its blocks are recorded."""
    block = stack.blocks[0]
    recorded = stack.training and getattr(block, "recorded", False)
    windowed = getattr(block, "use_cross_attention", False)
    if mask is None or extra_args or not (recorded and windowed):
        return None
    atoms, missing = a.shape[-2], -a.shape[-2] % ATOMS
    windows = (atoms + missing) // block.attention_pair_bias.n_query - z.shape[-4]
    a, s = (pad(x, (0, 0, 0, missing)) for x in (a, s))
    padded = a, s, pad(z, (0,) * 7 + (windows,)), pad(mask, (0, missing))
    return stack.torch_class.forward(stack, *padded, **options)[..., :atoms, :]  # type: ignore[no-any-return]


Form(
    pad_atoms, {"layer_norm_z": Norm("z", bias=None), "blocks": nn.ModuleList},
    ("a", "s", "z", "mask"), recordable=False,
)  # fmt: skip
for _drop in ({}, {"drop_path": nn.Identity}):
    Form(
        run_protenix_diffusion_block,
        {"attention_pair_bias": run_token_attention,
         "conditioned_transition_block": run_conditioned_transition, **_drop},
        ("a", "s", "z", *_IGNORED), ("Na", "Ns", "NNz"),
    )  # fmt: skip
_BOLTZ_LAYER: dict[str, Part] = {
    "adaln": run_adaptive_norm, "output_projection_linear": Linear("a", "s", True),
    "output_projection.0": Linear("a", "s", True), "output_projection.1": None,
    "transition": run_conditioned_transition,
}  # fmt: skip
Form(
    run_boltz_diffusion_layer,
    {**_BOLTZ_LAYER, "pair_bias_attn": run_boltz_attention, "post_lnorm": nn.Module},
    ("a", "s", "bias", "mask", "to_keys", "multiplicity"), ("Na", "Ns", "NNh", "N"),
    heads="pair_bias_attn.num_heads",
)  # fmt: skip
Form(  # Boltz-1's: its own forward calls its fused parts
    None, {**_BOLTZ_LAYER, "pair_bias_attn": run_boltz_1_attention},
    ("a", "s", "z", "mask", "to_keys", "multiplicity", "layer_cache"),
    heads="pair_bias_attn.num_heads",
)  # fmt: skip

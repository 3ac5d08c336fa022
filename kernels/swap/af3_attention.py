"""Fused forwards of the attention of tokens with pair bias of Boltz, OpenFold3 and Protenix.

Of the single track, and of the diffusion transformer, whose noise copies share one z and so one
bias.

Letters: B batch, R copies that share a bias, N tokens, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.attention.op import MAX_HEAD_WIDTH, biased_attention
from evofeed.kernels.ops.conditioned_attention.op import (
    conditioned_attention,
    conditioned_attention_fits,
)
from evofeed.kernels.ops.conditioned_attention.reference import ConditionedAttentionWeights
from evofeed.kernels.ops.pair_bias.op import pair_bias
from evofeed.kernels.runtime.backend import usable
from evofeed.kernels.swap.af3_conditioned import (
    adaptive_eps,
    adaptive_trouble,
    adaptive_weights,
)
from evofeed.kernels.swap.forms import (
    children_trouble,
    has,
    linear_trouble,
    norm_trouble,
    signature_trouble,
)
from evofeed.kernels.swap.parameters import alike, four_axes, spreads, within

# --- attention with pair bias ---------------------------------------------------------------------


def shared_bias(a: torch.Size, z: torch.Size) -> tuple[int, int] | None:
    """B and R of attention whose leading axes are `a`, with a bias whose leading axes are `z`.

    None where copies do not share the bias in a way that the kernels know.
    """
    if a == z:
        return math.prod(a), 1
    if a and len(a) == len(z) and z[-1] == 1 and a[:-1] == z[:-1]:
        return math.prod(a[:-1]), a[-1]
    if len(z) <= len(a) and math.prod(z) == 1:
        return 1, math.prod(a)
    return None


def _fits(a: Tensor, width: int, *others: Tensor | None) -> bool:
    return width <= MAX_HEAD_WIDTH and a.dtype is not torch.float64 and usable(a, *others)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor, mask: Tensor | None,
    sizes: tuple[int, int],
) -> Tensor:  # fmt: skip
    """Attention of `[..., N, C]`, heads side by side, with a bias `[B, H, N, N]`."""
    *lead, N, C = q.shape
    q_, k_, v_ = (t.reshape(*sizes, N, heads, C // heads) for t in (q, k, v))
    if mask is not None:
        mask = mask.expand(*lead, N).reshape(*sizes, N)
    return biased_attention(q_, k_, v_, bias, mask).reshape(q.shape)


def _bias_of(z: Tensor, norm: Any, layer: Any) -> Tensor:
    """`[B, H, N, N]` from pairs `[..., N, N, C]`.

    A norm without bias counts as zeros; without a norm the pairs came normalised.
    """
    if norm is None:
        return layer(four_axes(z)).movedim(-1, 1)  # type: ignore[no-any-return]
    offset = norm.weight.new_zeros(norm.weight.shape) if norm.bias is None else norm.bias
    return pair_bias(four_axes(z), norm.weight, offset, layer.weight, norm.eps)


class FusedBoltzPairBiasAttention(Recordable):
    """Forward of Boltz-2's `AttentionPairBias`: its copies follow each other in the batch."""

    def forward(
        self: Any, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int = 1
    ) -> Tensor:
        """As the original's."""
        width, same = self.proj_q.weight.shape[0] // self.num_heads, s.shape == k_in.shape
        copies = s.dim() == 3 and s.shape[0] == z.shape[0] * multiplicity
        if not (copies and same and within(mask, s) and _fits(s, width, z, mask, k_in)):
            return super().forward(s, z, mask, k_in, multiplicity)  # type: ignore[misc,no-any-return]
        inner = list(self.proj_z.children())
        bias = _bias_of(z, *inner[:2]) if inner else self.proj_z(z)
        with torch.autocast(s.device.type, enabled=False):
            dtype, sizes = self.proj_q.weight.dtype, (z.shape[0], multiplicity)
            wide = s.to(dtype)
            keys = wide if k_in is s else k_in.to(dtype)
            q, k, v = (
                layer(x).float()
                for layer, x in ((self.proj_q, wide), (self.proj_k, keys), (self.proj_v, keys))
            )
            o = _attend(q, k, v, self.num_heads, bias.float(), mask, sizes).to(s.dtype)
        out: Tensor = self.proj_o(torch.sigmoid(self.proj_g(s)) * o)
        return out


class Parts(NamedTuple):
    """What OpenFold3's and Protenix's attention of tokens is made of."""

    norm: Any  # of a; adaptive where there is a `last`
    norm_z: Any  # None where the transformer has normalised z for all its blocks
    pair: Any
    mha: Any
    heads: Any
    last: Any  # the layer of the gate that s gives, or None


def parts_of(module: Any) -> Parts:
    """The parts, by either project's names."""
    m = module
    if hasattr(m, "mha"):
        norm_z, last = getattr(m, "layer_norm_z", None), getattr(m, "linear_ada_out", None)
        heads = getattr(m.mha, "no_heads", None)
        return Parts(m.layer_norm_a, norm_z, m.linear_z, m.mha, heads, last)
    last, heads = m.linear_a_last if m.has_s else None, m.attention.num_heads
    return Parts(m.layernorm_a, m.layernorm_z, m.linear_nobias_z, m.attention, heads, last)


def token_weights(norm: Any, layers: Sequence[Any], last: Any) -> ConditionedAttentionWeights:
    """Parameters of an attention of tokens whose `layers` are q, k, v, g and o."""
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


def token_attention(
    module: Any, a: Tensor, s: Tensor | None, z: Tensor, mask: Tensor | None,
    residual: bool = False,
) -> Tensor | None:  # fmt: skip
    """Fused attention of either project, or None where it does not fit."""
    parts, sizes = parts_of(module), shared_bias(a.shape[:-2], z.shape[:-3])
    if sizes is None or not usable(a, z, mask) or not alike(a, s) or not within(mask, a):
        return None
    if parts.last is not None and (s is None or not spreads(s.shape[:-1], a.shape[:-1])):
        return None
    mha = parts.mha
    layers = (mha.linear_q, mha.linear_k, mha.linear_v, mha.linear_g, mha.linear_o)
    weights, rows = token_weights(parts.norm, layers, parts.last), (*sizes, a.shape[-2])
    tokens, of_s = a.reshape(*rows, -1), None
    if parts.last is not None:
        assert s is not None
        of_s = s.expand(*a.shape[:-1], -1).reshape(*rows, -1)
    if not conditioned_attention_fits(tokens, of_s, weights, parts.heads):
        return None
    bias = _bias_of(z, parts.norm_z, parts.pair)
    keys = None if mask is None else mask.expand(a.shape[:-1]).reshape(rows)
    eps = parts.norm.eps if parts.last is None else adaptive_eps(parts.norm)
    out = conditioned_attention(
        tokens, of_s, weights, parts.heads, bias=bias, mask=keys, residual=residual, eps=eps
    )
    return out.reshape(a.shape)


class FusedPairBiasAttention(Recordable):
    """Forward of OpenFold3's `AttentionPairBias`, before 0.5 with or without adaptive norms.

    Since 0.5 that of its `DiffusionAttentionPairBias`.
    """

    def forward(
        self: Any, a: Tensor, z: Tensor, s: Tensor | None = None, mask: Tensor | None = None,
        *positional: Any, **options: Any,
    ) -> Tensor:  # fmt: skip
        """As the original's."""
        out = None if positional else token_attention(self, a, s, z, mask)
        if out is None:
            return super().forward(a, z, s, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        return out


class FusedSingleAttention(Recordable):
    """Forward of OpenFold3's `AttentionPairBias` since 0.5: of the single track alone."""

    def forward(
        self: Any, a: Tensor, z: Tensor, mask: Tensor | None = None, *positional: Any,
        **options: Any,
    ) -> Tensor:  # fmt: skip
        """As the original's."""
        out = None if positional else token_attention(self, a, None, z, mask)
        if out is None:
            return super().forward(a, z, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        return out


def is_plain(positional: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a call of Protenix's attention asks for all tokens, and out of place."""
    other = ("n_queries", "n_keys", "inplace_safe", "enable_efficient_fusion")
    return not positional and not any(options.get(name) for name in other)


class FusedProtenixPairBiasAttention(Recordable):
    """Forward of Protenix's `AttentionPairBias` over all tokens."""

    def forward(
        self: Any, a: Tensor, s: Tensor | None, z: Tensor, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        plain = is_plain(positional, options)
        out = token_attention(self, a, s, z, None) if plain else None
        if out is None:
            return super().forward(a, s, z, *positional, **options)  # type: ignore[misc,no-any-return]
        return out


def _boltz_trouble(module: Any) -> str | None:
    layers = ("proj_q", "proj_k", "proj_v", "proj_g", "proj_o")
    trouble = children_trouble(module, {*layers, "proj_z"})
    trouble = trouble or signature_trouble(module, "s", "z", "mask", "k_in", "multiplicity")
    if trouble:
        return trouble
    inner = list(module.proj_z.children())
    if inner and (len(inner) != 3 or list(inner[2].parameters())):
        return "makes its bias in a way that no fused op knows"
    if not inner and list(module.proj_z.parameters()):
        return "makes its bias in a way that no fused op knows"
    C, H = module.proj_q.weight.shape[-1], module.num_heads
    trouble = linear_trouble(
        (n, getattr(module, n), C, C, n == "proj_q") for n in layers
    ) or _pairs_trouble(inner[0] if inner else None, inner[1] if inner else None, H)
    return trouble or (None if C % H == 0 else "has heads of several widths")


def _pairs_trouble(norm: Any, layer: Any, heads: int | None) -> str | None:
    """What is unknown of what makes a bias; the norm may have no bias of its own."""
    if layer is None:
        return None
    C = layer.weight.shape[-1]
    if norm is None:
        return linear_trouble([("the pairs' layer", layer, heads, C, False)])
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    plain = isinstance(weight, Tensor) and weight.shape == (C,)
    if not plain or (bias is not None and bias.shape != (C,)):
        return f"the pairs' norm has no weight of {C} channels"
    if not isinstance(getattr(norm, "eps", None), float):
        return "the pairs' norm has no eps"
    return linear_trouble([("the pairs' layer", layer, heads, C, False)])


def _attention_trouble(mha: Any, heads: Any, channels: int) -> str | None:
    layers = ("linear_q", "linear_k", "linear_v", "linear_g")
    trouble = children_trouble(mha, {*layers, "linear_o"})
    if trouble or not isinstance(heads, int) or mha.linear_q.weight.shape[0] % heads:
        return trouble or "has no number of heads"
    K = mha.linear_q.weight.shape[0]
    return linear_trouble(
        [
            *((n, getattr(mha, n), K, channels, n == "linear_q") for n in layers),
            ("linear_o", mha.linear_o, channels, K, False),
        ]
    )


def _norm_trouble(norm: Any, channels: int, last: Any) -> str | None:
    """What is unknown of the norm of a, which is adaptive if there is a last gate."""
    if last is None:
        return norm_trouble([("the norm of a", norm, channels)])
    trouble = adaptive_trouble(norm)
    if trouble:
        return f"its norm {trouble}"
    C, K = adaptive_weights(norm).gate.shape
    if channels != C:
        return f"its norm has {C} channels, not {channels}"
    return linear_trouble([("the last gate's layer", last, C, K, True)])


def _openfold3_trouble(module: Any) -> str | None:
    single = signature_trouble(module, "a", "z", "mask") is None
    normalised = not hasattr(module, "layer_norm_z")  # since 0.5, in the diffusion transformer
    unsaid = normalised if single or normalised else None
    adaptive = getattr(module, "use_ada_layer_norm", unsaid)
    if not isinstance(adaptive, bool) or (adaptive and single) or (normalised and not adaptive):
        return "does not say whether its norm is adaptive"
    names = {"layer_norm_a", "linear_z", "mha"}
    names |= set() if normalised else {"layer_norm_z"}
    names |= {"linear_ada_out"} if adaptive else set()
    trouble = children_trouble(module, names)
    if not single:
        trouble = trouble or signature_trouble(module, "a", "z", "s", "mask")
    parts, channels = parts_of(module), module.mha.linear_q.weight.shape[-1]
    return (
        trouble
        or _attention_trouble(module.mha, parts.heads, channels)
        or _norm_trouble(parts.norm, channels, parts.last)
        or _pairs_trouble(parts.norm_z, parts.pair, parts.heads)
    )


def _protenix_trouble(module: Any) -> str | None:
    adaptive, windows = getattr(module, "has_s", None), module.cross_attention_mode
    if not isinstance(adaptive, bool) or windows is not False:
        return "attends in windows or does not say whether its norm is adaptive"
    names = {"layernorm_a", "layernorm_z", "linear_nobias_z", "attention"}
    names |= {"linear_a_last"} if adaptive else set()
    trouble = children_trouble(module, names)
    known = ("a", "s", "z", "n_queries", "n_keys", "inplace_safe", "chunk_size")
    later = signature_trouble(module, *known, "enable_efficient_fusion")
    trouble = trouble or (later and signature_trouble(module, *known))
    mha = module.attention
    heads, channels = getattr(mha, "num_heads", None), mha.linear_q.weight.shape[-1]
    last = module.linear_a_last if adaptive and not trouble else None
    return (
        trouble
        or _attention_trouble(mha, heads, channels)
        or _norm_trouble(module.layernorm_a, channels, last)
        or _pairs_trouble(module.layernorm_z, module.linear_nobias_z, heads)
    )


# --- which ----------------------------------------------------------------------------------------


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    if has(module, "proj_q", "proj_k", "proj_v", "proj_g", "proj_o", "proj_z"):
        return _boltz_trouble(module) or FusedBoltzPairBiasAttention
    if has(module, "layer_norm_a", "linear_z", "mha"):
        single = signature_trouble(module, "a", "z", "mask") is None
        fused = FusedSingleAttention if single else FusedPairBiasAttention
        return _openfold3_trouble(module) or fused
    if has(module, "layernorm_a", "layernorm_z", "linear_nobias_z", "attention"):
        if not hasattr(module, "cross_attention_mode"):
            return "does not say whether it attends in windows"
        return _protenix_trouble(module) or FusedProtenixPairBiasAttention
    return None

"""Fused forwards of the attentions that AF3's trunk adds to AF2's, for all three projects.

Pair-weighted averaging of the MSA, and attention of tokens with pair bias: of the single track,
and of the diffusion transformer, whose noise copies share one z and so one bias.

Letters: B batch, R copies that share a bias, N tokens, H heads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.attention.op import MAX_HEAD_WIDTH, biased_attention
from evofeed.kernels.ops.pair_bias.op import pair_bias
from evofeed.kernels.ops.weighted_average.op import (
    AverageWeights,
    weighted_average,
    weighted_average_fits,
)
from evofeed.kernels.runtime.backend import usable
from evofeed.kernels.swap.forms import (
    children_trouble,
    has,
    linear_trouble,
    norm_trouble,
    signature_trouble,
)
from evofeed.kernels.swap.modules import four_axes, shaped

__all__ = ["rule"]

# norm of m, norm of z, values, gate, pair weights, output: Boltz, OpenFold3, Protenix
AVERAGES = (
    ("norm_m", "norm_z", "proj_m", "proj_g", "proj_z", "proj_o"),
    ("layer_norm_m", "layer_norm_z", "linear_v", "linear_g", "linear_z", "linear_o"),
    ("layernorm_m", "layernorm_z", "linear_no_bias_mv", "linear_no_bias_mg", "linear_no_bias_z",
     "linear_no_bias_out"),
)  # fmt: skip


# --- pair-weighted averaging ----------------------------------------------------------------------


class FusedPairWeightedAveraging(Recordable):
    """Forward of all three; Protenix's takes no mask."""

    def forward(self: Any, m: Tensor, z: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's."""
        norm_m, norm_z, v, g, pair, o = _named(self, _average_names(self))
        mask = positional[0] if positional else options.get("mask")
        weights = AverageWeights(norm_m.weight, norm_m.bias, v.weight, g.weight, o.weight)
        flat, pairs = four_axes(m), four_axes(z)
        late = len(positional) > 1 or flat.shape[0] != pairs.shape[0]
        heads = pairs.new_empty((1, pair.weight.shape[0], 1, 1))
        if late or not weighted_average_fits(flat, heads, weights):
            return super().forward(m, z, *positional, **options)  # type: ignore[misc,no-any-return]
        bias = pair_bias(pairs, norm_z.weight, norm_z.bias, pair.weight, norm_z.eps).float()
        if mask is not None:
            masked = self.inf * (mask.expand(z.shape[:-1]).float() - 1)
            bias = bias + masked.reshape(pairs.shape[:-1])[:, None]
        update = weighted_average(flat, torch.softmax(bias, -1), weights, eps=norm_m.eps)
        return shaped(update, m)


def _average_names(module: nn.Module) -> tuple[str, ...]:
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
    """`[B, H, N, N]` from pairs `[..., N, N, C]`; a norm without bias counts as zeros."""
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
        if not (copies and same and _fits(s, width, z, mask, k_in)):
            return super().forward(s, z, mask, k_in, multiplicity)  # type: ignore[misc,no-any-return]
        inner = list(self.proj_z.children())
        bias = _bias_of(z, *inner[:2]) if inner else self.proj_z(z)
        with torch.autocast(s.device.type, enabled=False):
            wide = s.float()
            keys = wide if k_in is s else k_in.float()
            q, k, v = self.proj_q(wide), self.proj_k(keys), self.proj_v(keys)
            sizes = z.shape[0], multiplicity
            o = _attend(q, k, v, self.num_heads, bias.float(), mask, sizes).to(s.dtype)
        out: Tensor = self.proj_o(torch.sigmoid(self.proj_g(s)) * o)
        return out


class FusedPairBiasAttention(Recordable):
    """Forward of OpenFold3's `AttentionPairBias`, with or without adaptive norms."""

    def forward(
        self: Any, a: Tensor, z: Tensor, s: Tensor | None = None, mask: Tensor | None = None,
        *positional: Any, **options: Any,
    ) -> Tensor:  # fmt: skip
        """As the original's."""
        mha, sizes = self.mha, shared_bias(a.shape[:-2], z.shape[:-3])
        width = mha.linear_q.weight.shape[0] // mha.no_heads
        if positional or sizes is None or not _fits(a, width, z, mask):
            return super().forward(a, z, s, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        a = self.layer_norm_a(a, s) if self.use_ada_layer_norm else self.layer_norm_a(a)
        bias = _bias_of(z, self.layer_norm_z, self.linear_z)
        q, k, v = mha.linear_q(a), mha.linear_k(a), mha.linear_v(a)
        o = _attend(q, k, v, mha.no_heads, bias, mask, sizes)
        out: Tensor = mha.linear_o(torch.sigmoid(mha.linear_g(a)) * o)
        return torch.sigmoid(self.linear_ada_out(s)) * out if self.use_ada_layer_norm else out


class FusedProtenixPairBiasAttention(Recordable):
    """Forward of Protenix's `AttentionPairBias` over all tokens."""

    def forward(
        self: Any, a: Tensor, s: Tensor | None, z: Tensor, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        mha, sizes = self.attention, shared_bias(a.shape[:-2], z.shape[:-3])
        width = mha.linear_q.weight.shape[0] // mha.num_heads
        other = ("n_queries", "n_keys", "inplace_safe", "enable_efficient_fusion")
        changes = positional or any(options.get(name) for name in other)
        if changes or sizes is None or not _fits(a, width, z):
            return super().forward(a, s, z, *positional, **options)  # type: ignore[misc,no-any-return]
        a = self.layernorm_a(a, s) if self.has_s else self.layernorm_a(a)
        bias = _bias_of(z, self.layernorm_z, self.linear_nobias_z)
        q, k, v = mha.linear_q(a), mha.linear_k(a), mha.linear_v(a)
        o = _attend(q, k, v, mha.num_heads, bias, None, sizes)
        out: Tensor = mha.linear_o(torch.sigmoid(mha.linear_g(a)) * o)
        return torch.sigmoid(self.linear_a_last(s)) * out if self.has_s else out


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
    if norm is None:
        return None
    C = layer.weight.shape[-1]
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


def _openfold3_trouble(module: Any) -> str | None:
    adaptive = getattr(module, "use_ada_layer_norm", None)
    if not isinstance(adaptive, bool):
        return "does not say whether its norm is adaptive"
    names = {"layer_norm_a", "layer_norm_z", "linear_z", "mha"}
    names |= {"linear_ada_out"} if adaptive else set()
    trouble = children_trouble(module, names) or signature_trouble(module, "a", "z", "s", "mask")
    heads, channels = getattr(module.mha, "no_heads", None), module.mha.linear_q.weight.shape[-1]
    return (
        trouble
        or _attention_trouble(module.mha, heads, channels)
        or _pairs_trouble(module.layer_norm_z, module.linear_z, heads)
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
    return (
        trouble
        or _attention_trouble(mha, heads, channels)
        or _pairs_trouble(module.layernorm_z, module.linear_nobias_z, heads)
    )


# --- which ----------------------------------------------------------------------------------------


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those that are of a known form in every respect."""
    for names in AVERAGES:
        if has(module, *names) and not has(module, "mha"):
            return _average_trouble(module, names) or FusedPairWeightedAveraging
    if has(module, "proj_q", "proj_k", "proj_v", "proj_g", "proj_o", "proj_z"):
        return _boltz_trouble(module) or FusedBoltzPairBiasAttention
    if has(module, "layer_norm_a", "layer_norm_z", "linear_z", "mha"):
        return _openfold3_trouble(module) or FusedPairBiasAttention
    if has(module, "layernorm_a", "layernorm_z", "linear_nobias_z", "attention"):
        if not hasattr(module, "cross_attention_mode"):
            return "does not say whether it attends in windows"
        return _protenix_trouble(module) or FusedProtenixPairBiasAttention
    return None

"""Fused forwards of the diffusion transformer's blocks of Boltz, OpenFold3 and Protenix.

Attention of tokens and conditioned transition, each with its residual. Blocks that attend in
windows of atoms keep their own forward. A swapped block calls the ops directly with its modules'
parameters: forward hooks on the modules inside do not fire.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.conditioned_attention.op import (
    conditioned_attention,
    conditioned_attention_fits,
)
from evofeed.kernels.runtime.backend import usable
from evofeed.kernels.swap import af3_attention, af3_conditioned
from evofeed.kernels.swap.af3_attention import (
    FusedBoltzPairBiasAttention,
    FusedPairBiasAttention,
    FusedProtenixPairBiasAttention,
    is_plain,
    token_attention,
    token_weights,
)
from evofeed.kernels.swap.af3_conditioned import (
    FusedAdaptiveNorm,
    FusedConditionedTransition,
    adaptive_eps,
    adaptive_weights,
    transition_of_tokens,
)
from evofeed.kernels.swap.forms import children, linear_trouble, signature_trouble
from evofeed.kernels.swap.parameters import spreads, within


class FusedDiffusionBlock(Recordable):
    """Forward of OpenFold3's `DiffusionTransformerBlock`."""

    def forward(
        self: Any, a: Tensor, s: Tensor, z: Tensor, mask: Tensor | None = None, *positional: Any,
        **options: Any,
    ) -> Tensor:  # fmt: skip
        """As the original's."""
        attended = None if positional else token_attention(
            self.attention_pair_bias, a, s, z, mask, residual=True
        )  # fmt: skip
        if attended is None:
            return super().forward(a, s, z, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        mask = mask if options.get("_mask_trans", True) else None
        return _transition(self.conditioned_transition, attended, s, mask)


def _transition(module: Any, a: Tensor, s: Tensor, mask: Tensor | None) -> Tensor:
    """a plus its conditioned transition."""
    out = transition_of_tokens(module, a, s, mask, residual=True)
    if out is not None:
        return out
    return a + (module(a, s) if mask is None else module(a, s, mask))  # type: ignore[no-any-return]


class FusedProtenixDiffusionBlock(Fused):
    """Forward of Protenix's `DiffusionTransformerBlock` over all tokens.

    It hands s and z on, which a recording would copy: CUDA graphs are made of its parts.
    """

    def forward(
        self: Any, a: Tensor, s: Tensor, z: Tensor, *positional: Any, **options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As the original's."""
        attended = None
        recorded = getattr(self.attention_pair_bias, "recorded", False)
        if is_plain(positional, options) and not recorded:
            attended = token_attention(self.attention_pair_bias, a, s, z, None, residual=True)
        if attended is None:
            return super().forward(a, s, z, *positional, **options)  # type: ignore[misc,no-any-return]
        return _transition(self.conditioned_transition_block, attended, s, None), s, z


class FusedBoltzDiffusionLayer(Recordable):
    """Forward of Boltz's `DiffusionTransformerLayer` over all tokens, whose bias is given.

    Boltz's attention is float32 under autocast too: it is one op only without.
    """

    def forward(
        self: Any, a: Tensor, s: Tensor, bias: Tensor, mask: Tensor, to_keys: Any = None,
        multiplicity: int = 1,
    ) -> Tensor:  # fmt: skip
        """As the original's."""
        copies = a.dim() == 3 and a.shape[0] == bias.shape[0] * multiplicity
        if to_keys is not None or not copies or not usable(a, s, bias, mask):
            return super().forward(a, s, bias, mask, to_keys, multiplicity)  # type: ignore[misc,no-any-return]
        attended = _boltz_attention(self, a, s, bias, mask, multiplicity)
        if attended is None:
            b = self.adaln(a, s)
            b = self.pair_bias_attn(s=b, z=bias, mask=mask, multiplicity=multiplicity, k_in=b)
            attended = a + self.output_projection(s) * b
        return self.post_lnorm(_transition(self.transition, attended, s, None))  # type: ignore[no-any-return]


def _boltz_attention(
    layer: Any, a: Tensor, s: Tensor, bias: Tensor, mask: Tensor, multiplicity: int
) -> Tensor | None:
    """a plus its gated attention in float32, or None where it does not fit."""
    inner, rows = layer.pair_bias_attn, (bias.shape[0], multiplicity, a.shape[1])
    layers = (inner.proj_q, inner.proj_k, inner.proj_v, inner.proj_g, inner.proj_o)
    weights = token_weights(layer.adaln, layers, layer.output_projection_linear)
    if torch.is_autocast_enabled(a.device.type) or a.dtype is not torch.float32:
        return None
    if not (within(mask, a) and spreads(s.shape[:-1], a.shape[:-1])):
        return None
    tokens, of_s = a.reshape(*rows, -1), s.expand(*a.shape[:-1], -1).reshape(*rows, -1)
    if not conditioned_attention_fits(tokens, of_s, weights, inner.num_heads):
        return None
    keys = mask.expand(a.shape[:-1]).reshape(rows)
    out = conditioned_attention(
        tokens, of_s, weights, inner.num_heads, bias=inner.proj_z(bias).float(), mask=keys,
        residual=True, eps=adaptive_eps(layer.adaln),
    )  # fmt: skip
    return out.reshape(a.shape)


# --- which ----------------------------------------------------------------------------------------

BOLTZ = {
    "adaln", "pair_bias_attn", "output_projection_linear", "output_projection", "transition",
    "post_lnorm",
}  # fmt: skip
FORMS: dict[frozenset[str], tuple[type[Fused], type[Fused], tuple[str, ...]]] = {
    frozenset({"attention_pair_bias", "conditioned_transition"}):
        (FusedDiffusionBlock, FusedPairBiasAttention, ("a", "s", "z", "mask")),
    frozenset({"attention_pair_bias", "conditioned_transition_block", "drop_path"}):
        (FusedProtenixDiffusionBlock, FusedProtenixPairBiasAttention,
         ("a", "s", "z", "n_queries", "n_keys", "inplace_safe", "chunk_size")),
    frozenset({"attention_pair_bias", "conditioned_transition_block"}):
        (FusedProtenixDiffusionBlock, FusedProtenixPairBiasAttention,
         ("a", "s", "z", "n_queries", "n_keys", "inplace_safe", "chunk_size")),
    frozenset(BOLTZ):
        (FusedBoltzDiffusionLayer, FusedBoltzPairBiasAttention,
         ("a", "s", "bias", "mask", "to_keys", "multiplicity")),
}  # fmt: skip
"""What is inside a block, what it becomes, what its attention must be, its arguments."""


def _form_of(module: nn.Module) -> type[Fused] | str | None:
    if isinstance(module, Fused):
        return module.mixin
    return af3_attention.rule(module) or af3_conditioned.rule(module)


def _boltz_trouble(layer: Any) -> str | None:
    gate = list(layer.output_projection.children())
    parameters = list(layer.output_projection.parameters())
    own = layer.output_projection_linear
    if len(gate) != 2 or [id(p) for p in parameters] != [id(own.weight), id(own.bias)]:
        return "gates its attention in a way that no fused op knows"
    if _form_of(layer.adaln) is not FusedAdaptiveNorm:
        return "its norm is of a form that no fused op knows"
    C, K = adaptive_weights(layer.adaln).gate.shape
    return linear_trouble([("the last gate's layer", own, C, K, True)])


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which blocks are swapped for these: those of a known form, all of whose parts are fused."""
    parts = frozenset(children(module))
    if parts not in FORMS:
        return None
    fused, attention, arguments = FORMS[parts]
    known: dict[str, type[Fused]] = {
        name: attention if "att" in name else FusedConditionedTransition
        for name in parts if "att" in name or "transition" in name
    }  # fmt: skip
    for name, kind in known.items():
        if _form_of(getattr(module, name)) is not kind:
            return f"{name} is of a form that no fused op knows"
    drop = getattr(module, "drop_path", None)
    if drop is not None and not isinstance(drop, nn.Identity):
        return "drops paths"
    trouble = signature_trouble(module, *arguments)
    later = (*arguments, "enable_efficient_fusion")
    trouble = trouble and signature_trouble(module, *later)
    if trouble is None and fused is FusedBoltzDiffusionLayer:
        trouble = _boltz_trouble(module)
    return trouble or fused

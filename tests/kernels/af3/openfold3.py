"""OpenFold3's modules, as their records describe them: names, arguments and mathematics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.kernels.af3 import maths
from tests.kernels.af3.maths import (
    Attention,
    DropoutRowwise,
    LayerNorm,
    OuterProductMean,
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
    linear,
)
from torch import Tensor, nn


class TriangleAttention(maths.TriangleAttention):
    _pair = "linear_z"

    def forward(self, x: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        return self._attend(x, mask)


class TriangleAttentionEndingNode(TriangleAttention):
    def __init__(self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__(c_in, c_hidden, no_heads, False, inf)


class FusedTriangleMultiplicationOutgoing(maths.TriangleMultiplication):
    def __init__(self, c_z: int, c_hidden: int, linear_init_params: Any = None) -> None:
        super().__init__(c_z, c_hidden, bias := linear_init_params is None)
        self.linear_ab_p = linear(c_z, 2 * c_hidden, bias)
        self.linear_ab_g = linear(c_z, 2 * c_hidden, bias)

    def _halves(self, z: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (torch.sigmoid(self.linear_ab_g(z)) * self.linear_ab_p(z)).chunk(2, dim=-1)
        return a, b


class FusedTriangleMultiplicationIncoming(FusedTriangleMultiplicationOutgoing):
    _outgoing = False


class SwiGLU(nn.Module):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.c_in, self.c_out = c_in, c_out
        self.linear_a, self.linear_b = linear(c_in, c_out), linear(c_in, c_out)
        self.swish = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.linear_a(x)) * self.linear_b(x)  # type: ignore[no-any-return]


class SwiGLUTransition(nn.Module):
    def __init__(self, c_in: int, n: int) -> None:
        super().__init__()
        self.c_in, self.n, self.layer_norm = c_in, n, LayerNorm(c_in)
        self.swiglu, self.linear_out = SwiGLU(c_in, n * c_in), linear(n * c_in, c_in)

    def forward(self, x: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        out: Tensor = self.linear_out(self.swiglu(self.layer_norm(x)))
        return out if mask is None else out * mask[..., None]


class MSAPairWeightedAveraging(nn.Module):
    def __init__(self, c_in: int, c_hidden: int, c_z: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__()
        self.c_in, self.c_hidden, self.c_z = c_in, c_hidden, c_z
        self.no_heads, self.inf, self.sigmoid = no_heads, inf, nn.Sigmoid()
        width = c_hidden * no_heads
        self.layer_norm_m, self.layer_norm_z = LayerNorm(c_in), LayerNorm(c_z)
        self.linear_z, self.linear_v = linear(c_z, no_heads), linear(c_in, width)
        self.linear_o, self.linear_g = linear(width, c_in), linear(c_in, width)

    def forward(self, m: Tensor, z: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        return maths.weighted_averages(
            m, z, mask, self.layer_norm_m, self.layer_norm_z, self.linear_v, self.linear_g,
            self.linear_z, self.linear_o, self.inf,
        )  # fmt: skip


class AdaLN(nn.Module):
    def __init__(self, c_a: int, c_s: int) -> None:
        super().__init__()
        self.c_a, self.c_s, self.eps = c_a, c_s, 1e-5
        self.layer_norm_a = LayerNorm(c_a, scale=False, offset=False)
        self.layer_norm_s, self.sigmoid = LayerNorm(c_s, offset=False), nn.Sigmoid()
        self.linear_g, self.linear_s = linear(c_s, c_a, bias=True), linear(c_s, c_a)

    def forward(self, a: Tensor, s: Tensor) -> Tensor:
        a, s = self.layer_norm_a(a), self.layer_norm_s(s)
        return torch.sigmoid(self.linear_g(s)) * a + self.linear_s(s)  # type: ignore[no-any-return]


def attend_with_pairs(module: Any, a: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
    mask = a.new_ones(a.shape[:-1]) if mask is None else mask
    keys = (module.inf * (mask - 1))[..., None, None, :]
    z = module.layer_norm_z(z) if hasattr(module, "layer_norm_z") else z
    bias, mha = module.linear_z(z).movedim(-1, -3), module.mha
    o = maths.attend(mha.linear_q(a), mha.linear_k(a), mha.linear_v(a), mha.no_heads, keys, bias)
    out: Tensor = mha.linear_o(torch.sigmoid(mha.linear_g(a)) * o)
    return out


class AttentionPairBias(nn.Module):
    def __init__(
        self, c_q: int, c_k: int, c_v: int, c_s: int, c_z: int, c_hidden: int, no_heads: int,
        use_ada_layer_norm: bool = False, inf: float = 1e9,
    ) -> None:  # fmt: skip
        super().__init__()
        self.c_q, self.c_s, self.c_z, self.inf = c_q, c_s, c_z, inf
        self.use_ada_layer_norm = use_ada_layer_norm
        self.layer_norm_a = AdaLN(c_q, c_s) if use_ada_layer_norm else LayerNorm(c_q)
        if use_ada_layer_norm:
            self.linear_ada_out = linear(c_s, c_q, bias=True)
        self.layer_norm_z = LayerNorm(c_z, offset=not use_ada_layer_norm)
        self.linear_z, self.sigmoid = linear(c_z, no_heads), nn.Sigmoid()
        self.mha = Attention(c_q, c_hidden, no_heads, q_bias=True)

    def forward(
        self, a: Tensor, z: Tensor, s: Tensor | None = None, mask: Tensor | None = None, **how: Any
    ) -> Tensor:
        a = self.layer_norm_a(a, s) if self.use_ada_layer_norm else self.layer_norm_a(a)
        out = attend_with_pairs(self, a, z, mask)
        return torch.sigmoid(self.linear_ada_out(s)) * out if self.use_ada_layer_norm else out


class ConditionedTransitionBlock(nn.Module):
    def __init__(self, c_a: int, c_s: int, n: int) -> None:
        super().__init__()
        self.c_a, self.c_s, self.n, self.layer_norm = c_a, c_s, n, AdaLN(c_a, c_s)
        self.swiglu, self.sigmoid = SwiGLU(c_a, n * c_a), nn.Sigmoid()
        self.linear_g, self.linear_out = linear(c_s, c_a, bias=True), linear(n * c_a, c_a)

    def forward(self, a: Tensor, s: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        b = self.swiglu(self.layer_norm(a, s))
        out: Tensor = torch.sigmoid(self.linear_g(s)) * self.linear_out(b)
        return out if mask is None else out * mask[..., None]


class DiffusionTransformerBlock(nn.Module):
    def __init__(
        self, c_a: int, c_s: int, c_z: int, c_hidden: int, no_heads: int, n_transition: int,
        use_ada_layer_norm: bool, n_query: int | None, n_key: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.use_cross_attention = False
        self.attention_pair_bias = AttentionPairBias(
            c_a, c_a, c_a, c_s, c_z, c_hidden, no_heads, use_ada_layer_norm
        )
        self.conditioned_transition = ConditionedTransitionBlock(c_a, c_s, n_transition)

    def forward(
        self, a: Tensor, s: Tensor, z: Tensor, mask: Tensor | None = None, *,
        _mask_trans: bool = True, **how: Any,
    ) -> Tensor:  # fmt: skip
        a = a + self.attention_pair_bias(a, z, s, mask)
        return a + self.conditioned_transition(a, s, mask if _mask_trans else None)  # type: ignore[no-any-return]


class PairBlock(nn.Module):
    def __init__(
        self, c_z: int, c_hidden_mul: int, c_hidden_pair_att: int, no_heads_pair: int,
        transition_n: int, pair_dropout: float, **how: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tri_mul_out = TriangleMultiplicationOutgoing(c_z, c_hidden_mul)
        self.tri_mul_in = TriangleMultiplicationIncoming(c_z, c_hidden_mul)
        self.tri_att_start = TriangleAttention(c_z, c_hidden_pair_att, no_heads_pair)
        self.tri_att_end = TriangleAttention(c_z, c_hidden_pair_att, no_heads_pair)
        self.pair_transition = SwiGLUTransition(c_z, transition_n)
        self.ps_dropout_row_layer = DropoutRowwise(pair_dropout)

    def _multiply(self, z: Tensor, mask: Tensor) -> Tensor:
        z = z + self.ps_dropout_row_layer(self.tri_mul_out(z, mask))
        return z + self.ps_dropout_row_layer(self.tri_mul_in(z, mask))  # type: ignore[no-any-return]

    def _attend(self, z: Tensor, mask: Tensor) -> Tensor:
        z = z + self.ps_dropout_row_layer(self.tri_att_start(z, mask))
        z, turned = z.transpose(-2, -3), mask.transpose(-1, -2)
        z = z + self.ps_dropout_row_layer(self.tri_att_end(z, turned))
        return z.transpose(-2, -3)

    def forward(
        self, z: Tensor, pair_mask: Tensor, *, _mask_trans: bool = True, **how: Any
    ) -> Tensor:
        z = self._attend(self._multiply(z, pair_mask), pair_mask)
        return z + self.pair_transition(z, pair_mask if _mask_trans else None)  # type: ignore[no-any-return]


class TemplatePairBlock(PairBlock):
    def __init__(
        self, c_t: int, c_hidden_tri_mul: int, c_hidden_tri_att: int, no_heads: int,
        pair_transition_n: int, dropout_rate: float, tri_mul_first: bool, **how: Any,
    ) -> None:  # fmt: skip
        sizes = (c_t, c_hidden_tri_mul, c_hidden_tri_att, no_heads)
        super().__init__(*sizes, transition_n=pair_transition_n, pair_dropout=dropout_rate, **how)
        self.tri_mul_first = tri_mul_first

    def forward(self, z: Tensor, mask: Tensor, *, _mask_trans: bool = True, **how: Any) -> Tensor:
        done = []
        for x, m in zip(z.unbind(-4), mask.unbind(-3), strict=True):
            steps = [self._multiply, self._attend]
            for step in steps if self.tri_mul_first else reversed(steps):
                x = step(x, m)
            done.append(x + self.pair_transition(x, m if _mask_trans else None))
        return torch.stack(done, -4)


class PairFormerBlock(nn.Module):
    def __init__(
        self, c_s: int, c_z: int, c_hidden_pair_bias: int, no_heads_pair_bias: int, **pairs: Any
    ) -> None:
        super().__init__()
        self.pair_stack = PairBlock(c_z, **pairs)
        self.attn_pair_bias = AttentionPairBias(
            c_s, c_s, c_s, c_s, c_z, c_hidden_pair_bias, no_heads_pair_bias
        )
        self.single_transition = SwiGLUTransition(c_s, pairs["transition_n"])

    def forward(
        self, s: Tensor, z: Tensor, single_mask: Tensor, pair_mask: Tensor, *,
        _mask_trans: bool = True, **how: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        z = self.pair_stack(z, pair_mask, _mask_trans=_mask_trans)
        s = s + self.attn_pair_bias(s, z, None, single_mask)
        return s + self.single_transition(s, single_mask if _mask_trans else None), z


class MSAModuleBlock(nn.Module):
    def __init__(
        self, c_m: int, c_z: int, c_hidden_msa_att: int, c_hidden_opm: int, no_heads_msa: int,
        msa_dropout: float, opm_first: bool, eps: float, last_block: bool = False, **pairs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.opm_first, self.skip_msa_update = opm_first, last_block
        self.msa_att_row, self.msa_dropout_layer, self.msa_transition = None, None, None
        if not last_block:
            self.msa_att_row = MSAPairWeightedAveraging(c_m, c_hidden_msa_att, c_z, no_heads_msa)
            self.msa_dropout_layer = DropoutRowwise(msa_dropout)
            self.msa_transition = SwiGLUTransition(c_m, pairs["transition_n"])
        self.outer_product_mean = OuterProductMean(c_m, c_z, c_hidden_opm)
        self.pair_stack = PairBlock(c_z, **pairs)

    def forward(
        self, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, *,
        _mask_trans: bool = True, **how: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        z = z + self.outer_product_mean(m, msa_mask)
        if self.msa_att_row is not None and self.msa_transition is not None:
            m = m + self.msa_dropout_layer(self.msa_att_row(m, z, pair_mask))  # type: ignore[misc]
            m = m + self.msa_transition(m, msa_mask if _mask_trans else None)
        return m, self.pair_stack(z, pair_mask, _mask_trans=_mask_trans)


class TurningTriangleAttention(TriangleAttention):
    """Since 0.5: told to, it transposes its bias."""

    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Tensor | None = None, transpose_bias: bool = False, **how: Any
    ) -> Tensor:
        return self._attend(x, mask, transpose_bias)


class TurningPairBlock(PairBlock):
    """Since 0.5."""

    def __init__(self, c_z: int, c_hidden_mul: int, c_hidden_pair_att: int, no_heads: int) -> None:
        super().__init__(c_z, c_hidden_mul, c_hidden_pair_att, no_heads, 2, 0.0)
        self.tri_att_start = TurningTriangleAttention(c_z, c_hidden_pair_att, no_heads)
        self.tri_att_end = TurningTriangleAttention(c_z, c_hidden_pair_att, no_heads)

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        z = z + self.ps_dropout_row_layer(self.tri_att_start(z, mask=pair_mask))
        z, turned = z.transpose(-2, -3), pair_mask.transpose(-1, -2)
        update = self.tri_att_end(z, mask=turned, transpose_bias=True)
        return (z + self.ps_dropout_row_layer(update)).transpose(-2, -3)

    def _attend(self, z: Tensor, mask: Tensor) -> Tensor:
        return self.tri_att_start_end(z, mask)


class SingleAttentionPairBias(AttentionPairBias):
    """Since 0.5: of the single track alone, and it does not say so."""

    def __init__(self, c_s: int, c_z: int, c_hidden: int, no_heads: int) -> None:
        super().__init__(c_s, c_s, c_s, c_s, c_z, c_hidden, no_heads)
        del self.use_ada_layer_norm

    def forward(  # type: ignore[override]
        self, a: Tensor, z: Tensor, mask: Tensor | None = None, **how: Any
    ) -> Tensor:
        return attend_with_pairs(self, self.layer_norm_a(a), z, mask)

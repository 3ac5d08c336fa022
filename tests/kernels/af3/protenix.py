"""Protenix's modules, as their records describe them: names, arguments and mathematics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.kernels.af3 import maths
from tests.kernels.af3.maths import DropoutRowwise, linear
from torch import Tensor, nn


class OpenFoldLayerNorm(maths.LayerNorm):
    def __init__(self, size: int, scale: bool = True, offset: bool = True) -> None:
        super().__init__(size, scale=scale, offset=offset)
        self.create_scale, self.create_offset = scale, offset


class TriangleAttention(maths.TriangleAttention):
    _norm = OpenFoldLayerNorm

    def forward(self, x: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        return self._attend(x, mask)


class TriangleAttentionEndingNode(TriangleAttention):
    def __init__(self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__(c_in, c_hidden, no_heads, False, inf)


class TriangleMultiplicationOutgoing(maths.TriangleMultiplicationOutgoing):
    _norm = OpenFoldLayerNorm


class TriangleMultiplicationIncoming(TriangleMultiplicationOutgoing):
    _outgoing = False


class Transition(nn.Module):
    def __init__(self, c_in: int, n: int) -> None:
        super().__init__()
        self.n, self.c_in, self.layernorm1 = n, c_in, OpenFoldLayerNorm(c_in)
        self.linear_no_bias_a, self.linear_no_bias_b = (linear(c_in, n * c_in) for _ in "ab")
        self.linear_no_bias = linear(n * c_in, c_in)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layernorm1(x)
        return self.linear_no_bias(F.silu(self.linear_no_bias_a(x)) * self.linear_no_bias_b(x))  # type: ignore[no-any-return]


class OuterProductMean(maths.OuterProductMean):
    _norm = OpenFoldLayerNorm


class MSAPairWeightedAveraging(nn.Module):
    def __init__(self, c_m: int, c: int, c_z: int, n_heads: int) -> None:
        super().__init__()
        self.c_m, self.c, self.n_heads, self.c_z = c_m, c, n_heads, c_z
        self.layernorm_m, self.layernorm_z = OpenFoldLayerNorm(c_m), OpenFoldLayerNorm(c_z)
        self.linear_no_bias_mv, self.linear_no_bias_mg = (linear(c_m, c * n_heads) for _ in "vg")
        self.linear_no_bias_z, self.softmax_w = linear(c_z, n_heads), nn.Softmax(-2)
        self.linear_no_bias_out = linear(c * n_heads, c_m)

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        return maths.weighted_averages(
            m, z, None, self.layernorm_m, self.layernorm_z, self.linear_no_bias_mv,
            self.linear_no_bias_mg, self.linear_no_bias_z, self.linear_no_bias_out, 0.0,
        )  # fmt: skip


class AdaptiveLayerNorm(nn.Module):
    def __init__(self, c_a: int, c_s: int) -> None:
        super().__init__()
        self.layernorm_a = OpenFoldLayerNorm(c_a, False, False)
        self.layernorm_s = OpenFoldLayerNorm(c_s, True, False)
        self.linear_s, self.linear_nobias_s = linear(c_s, c_a, bias=True), linear(c_s, c_a)

    def forward(self, a: Tensor, s: Tensor) -> Tensor:
        a, s = self.layernorm_a(a), self.layernorm_s(s)
        return torch.sigmoid(self.linear_s(s)) * a + self.linear_nobias_s(s)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """`modules.primitives.Attention`: q has a bias."""

    def __init__(self, c: int, num_heads: int) -> None:
        super().__init__()
        self.c_hidden, self.num_heads, self.gating = c // num_heads, num_heads, True
        self.linear_q = linear(c, c, bias=True)
        self.linear_k, self.linear_v = linear(c, c), linear(c, c)
        self.linear_o, self.linear_g, self.sigmoid = linear(c, c), linear(c, c), nn.Sigmoid()


class AttentionPairBias(nn.Module):
    def __init__(
        self, has_s: bool = True, create_offset_ln_z: bool = False, n_heads: int = 16,
        c_a: int = 768, c_s: int = 384, c_z: int = 128, cross_attention_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_heads, self.has_s, self.create_offset_ln_z = n_heads, has_s, create_offset_ln_z
        self.cross_attention_mode = cross_attention_mode
        self.layernorm_a = AdaptiveLayerNorm(c_a, c_s) if has_s else OpenFoldLayerNorm(c_a)
        self.attention = Attention(c_a, n_heads)
        self.layernorm_z = OpenFoldLayerNorm(c_z, True, create_offset_ln_z)
        self.linear_nobias_z = linear(c_z, n_heads)
        if has_s:
            self.linear_a_last = linear(c_s, c_a, bias=True)

    def forward(
        self, a: Tensor, s: Tensor | None, z: Tensor, n_queries: int | None = None,
        n_keys: int | None = None, inplace_safe: bool = False, chunk_size: int | None = None,
        enable_efficient_fusion: bool = False,
    ) -> Tensor:  # fmt: skip
        a = self.layernorm_a(a, s) if self.has_s else self.layernorm_a(a)
        if enable_efficient_fusion:  # pairs come normalised, channels first
            weight = self.linear_nobias_z.weight * self.layernorm_z.weight
            bias = torch.einsum("hc,...cij->...hij", weight, z)
        else:
            bias = self.linear_nobias_z(self.layernorm_z(z)).movedim(-1, -3)
        mha = self.attention
        o = maths.attend(mha.linear_q(a), mha.linear_k(a), mha.linear_v(a), mha.num_heads, bias)
        out: Tensor = mha.linear_o(torch.sigmoid(mha.linear_g(a)) * o)
        return torch.sigmoid(self.linear_a_last(s)) * out if self.has_s else out


class ConditionedTransitionBlock(nn.Module):
    def __init__(self, c_a: int, c_s: int, n: int = 2) -> None:
        super().__init__()
        self.c_a, self.c_s, self.n, self.adaln = c_a, c_s, n, AdaptiveLayerNorm(c_a, c_s)
        self.linear_nobias_a1, self.linear_nobias_a2 = linear(c_a, n * c_a), linear(c_a, n * c_a)
        self.linear_nobias_b, self.linear_s = linear(n * c_a, c_a), linear(c_s, c_a, bias=True)

    def forward(self, a: Tensor, s: Tensor) -> Tensor:
        a = self.adaln(a, s)
        b = F.silu(self.linear_nobias_a1(a)) * self.linear_nobias_a2(a)
        return torch.sigmoid(self.linear_s(s)) * self.linear_nobias_b(b)  # type: ignore[no-any-return]


class DiffusionTransformerBlock(nn.Module):
    def __init__(self, c_a: int, c_s: int, c_z: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads, self.c_a, self.c_s, self.c_z = n_heads, c_a, c_s, c_z
        self.attention_pair_bias = AttentionPairBias(True, False, n_heads, c_a, c_s, c_z)
        self.conditioned_transition_block = ConditionedTransitionBlock(c_a, c_s)
        self.drop_path = nn.Identity()

    def forward(
        self, a: Tensor, s: Tensor, z: Tensor, n_queries: int | None = None,
        n_keys: int | None = None, inplace_safe: bool = False, chunk_size: int | None = None,
        enable_efficient_fusion: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        how = {"enable_efficient_fusion": enable_efficient_fusion}
        a = a + self.attention_pair_bias(a, s, z, **how)
        return a + self.conditioned_transition_block(a, s), s, z


class PairformerBlock(nn.Module):
    def __init__(
        self, n_heads: int = 16, c_z: int = 128, c_s: int = 384, c_hidden_mul: int = 128,
        c_hidden_pair_att: int = 32, no_heads_pair: int = 4, num_intermediate_factor: int = 4,
        dropout: float = 0.25,
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_heads, self.p_drop, self.c_s = n_heads, dropout, c_s
        self.tri_mul_out = TriangleMultiplicationOutgoing(c_z, c_hidden_mul)
        self.tri_mul_in = TriangleMultiplicationIncoming(c_z, c_hidden_mul)
        self.tri_att_start = TriangleAttention(c_z, c_hidden_pair_att, no_heads_pair)
        self.tri_att_end = TriangleAttention(c_z, c_hidden_pair_att, no_heads_pair)
        self.dropout_row = DropoutRowwise(dropout)
        self.pair_transition = Transition(c_z, num_intermediate_factor)
        if c_s:
            self.attention_pair_bias = AttentionPairBias(False, True, n_heads, c_s, c_s, c_z)
            self.single_transition = Transition(c_s, 4)

    def forward(
        self, s: Tensor | None, z: Tensor, pair_mask: Tensor, **how: Any
    ) -> tuple[Tensor | None, Tensor]:
        for module in (self.tri_mul_out, self.tri_mul_in, self.tri_att_start):
            z = z + self.dropout_row(module(z, pair_mask))
        z = z.transpose(-2, -3).contiguous()
        z = z + self.dropout_row(self.tri_att_end(z, pair_mask.transpose(-1, -2).contiguous()))
        z = z.transpose(-2, -3).contiguous()
        z = z + self.pair_transition(z)
        if self.c_s:
            assert s is not None
            s = s + self.attention_pair_bias(s, None, z)
            s = s + self.single_transition(s)
        return s, z


class MSAStack(nn.Module):
    def __init__(
        self, c_m: int, c: int, c_z: int, n_heads: int, dropout: float, chunk: int, most: int
    ) -> None:
        super().__init__()
        self.c, self.p_drop, self.msa_chunk_size, self.msa_max_size = c, dropout, chunk, most
        self.msa_pair_weighted_averaging = MSAPairWeightedAveraging(c_m, c, c_z, n_heads)
        self.dropout_row, self.transition_m = DropoutRowwise(dropout), Transition(c_m, 4)

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        m = m + self.dropout_row(self.msa_pair_weighted_averaging(m, z))
        return m + self.transition_m(m)  # type: ignore[no-any-return]


class MSABlock(nn.Module):
    def __init__(
        self, c_m: int, c_z: int, c_hidden: int, msa_dropout: float = 0.15,
        pair_dropout: float = 0.25, msa_chunk_size: int = 2048, msa_max_size: int = 16384,
        is_last_block: bool = False, hidden_scale_up: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.c_m, self.c_z, self.c_hidden, self.is_last_block = c_m, c_z, c_hidden, is_last_block
        self.outer_product_mean_msa = OuterProductMean(c_m, c_z, c_hidden)
        if not is_last_block:
            self.msa_stack = MSAStack(c_m, 8, c_z, 8, msa_dropout, msa_chunk_size, msa_max_size)
        heads = c_z // 32 if hidden_scale_up else 4
        mul = c_z if hidden_scale_up else 128
        self.pair_stack = PairformerBlock(16, c_z, 0, mul, 32, heads, 4, pair_dropout)

    def forward(
        self, m: Tensor, z: Tensor, pair_mask: Tensor, **how: Any
    ) -> tuple[Tensor | None, Tensor]:
        z = z + self.outer_product_mean_msa(m)
        after = None if self.is_last_block else self.msa_stack(m, z)
        return after, self.pair_stack(None, z, pair_mask)[1]

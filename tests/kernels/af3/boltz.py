"""Boltz-2's modules, as their records describe them: names, arguments and mathematics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.kernels.af3 import maths
from tests.kernels.af3.maths import linear, wide
from torch import Tensor, nn


class TriangleAttention(maths.TriangleAttention):
    def forward(self, x: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        return self._attend(x, mask)


TriangleAttentionStartingNode = TriangleAttention


class TriangleAttentionEndingNode(TriangleAttention):
    def __init__(self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__(c_in, c_hidden, no_heads, False, inf)


class _TriangleMultiplication(nn.Module):
    def __init__(self, dim: int = 128) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.p_in, self.g_in = linear(dim, 2 * dim), linear(dim, 2 * dim)
        self.p_out, self.g_out = linear(dim, dim), linear(dim, dim)

    def _run(self, x: Tensor, mask: Tensor, outgoing: bool) -> Tensor:
        x = self.norm_in(x)
        ab = self.p_in(x) * torch.sigmoid(self.g_in(x)) * mask[..., None]
        a, b = wide(ab).chunk(2, dim=-1)
        product = maths.triangle_product(a, b, outgoing)
        out: Tensor = self.p_out(self.norm_out(product)) * torch.sigmoid(self.g_out(x))
        return out


class TriangleMultiplicationOutgoing(_TriangleMultiplication):
    def forward(self, x: Tensor, mask: Tensor, **how: Any) -> Tensor:
        return self._run(x, mask, True)


class TriangleMultiplicationIncoming(_TriangleMultiplication):
    def forward(self, x: Tensor, mask: Tensor, **how: Any) -> Tensor:
        return self._run(x, mask, False)


class Transition(nn.Module):
    def __init__(self, dim: int = 128, hidden: int = 512, out_dim: int | None = None) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(dim), linear(dim, hidden), linear(dim, hidden)
        self.fc3, self.silu, self.hidden = linear(hidden, out_dim or dim), nn.SiLU(), hidden

    def forward(self, x: Tensor, **how: Any) -> Tensor:
        x = self.norm(x)
        return self.fc3(self.silu(self.fc1(x)) * self.fc2(x))  # type: ignore[no-any-return]


class OuterProductMean(nn.Module):
    def __init__(self, c_in: int, c_hidden: int, c_out: int) -> None:
        super().__init__()
        self.c_hidden, self.norm = c_hidden, nn.LayerNorm(c_in)
        self.proj_a, self.proj_b = linear(c_in, c_hidden), linear(c_in, c_hidden)
        self.proj_o = linear(c_hidden * c_hidden, c_out, bias=True)

    def forward(self, m: Tensor, mask: Tensor, **how: Any) -> Tensor:
        outer, shared = maths.outer_product(m, mask, self.norm, self.proj_a, self.proj_b)
        return self.proj_o((outer / shared.clamp(min=1)).to(m.dtype))  # type: ignore[no-any-return]


class PairWeightedAveraging(nn.Module):
    def __init__(self, c_m: int, c_z: int, c_h: int, num_heads: int, inf: float = 1e6) -> None:
        super().__init__()
        self.c_m, self.c_z, self.c_h, self.num_heads, self.inf = c_m, c_z, c_h, num_heads, inf
        self.norm_m, self.norm_z = nn.LayerNorm(c_m), nn.LayerNorm(c_z)
        width = c_h * num_heads
        self.proj_m, self.proj_g = linear(c_m, width), linear(c_m, width)
        self.proj_z, self.proj_o = linear(c_z, num_heads), linear(width, c_m)

    def forward(self, m: Tensor, z: Tensor, mask: Tensor, **how: Any) -> Tensor:
        return maths.weighted_averages(
            m, z, mask, self.norm_m, self.norm_z, self.proj_m, self.proj_g, self.proj_z,
            self.proj_o, self.inf,
        )  # fmt: skip


class Rearrange(nn.Module):
    """einops' layer: heads from last to second."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(-1, 1)


class AttentionPairBias(nn.Module):
    def __init__(
        self, c_s: int, c_z: int | None = None, num_heads: int | None = None, inf: float = 1e6,
        compute_pair_bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        assert num_heads is not None
        self.c_s, self.num_heads, self.head_dim, self.inf = c_s, num_heads, c_s // num_heads, inf
        self.proj_q, self.compute_pair_bias = linear(c_s, c_s, bias=True), compute_pair_bias
        self.proj_k, self.proj_v, self.proj_g = (linear(c_s, c_s) for _ in range(3))
        self.proj_z: nn.Module = Rearrange()
        if compute_pair_bias:
            assert c_z is not None
            self.proj_z = nn.Sequential(nn.LayerNorm(c_z), linear(c_z, num_heads), Rearrange())
        self.proj_o = linear(c_s, c_s)

    def forward(
        self, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int = 1
    ) -> Tensor:
        bias = self.proj_z(z).repeat_interleave(multiplicity, 0)
        with torch.autocast(s.device.type, enabled=False):
            q, k, v = self.proj_q(wide(s)), self.proj_k(wide(k_in)), self.proj_v(wide(k_in))
            keys = (self.inf * (wide(mask) - 1))[:, None, None]
            o = maths.attend(q, k, v, self.num_heads, wide(bias), keys).to(s.dtype)
        return self.proj_o(torch.sigmoid(self.proj_g(s)) * o)  # type: ignore[no-any-return]


class AttentionPairBiasV1(AttentionPairBias):
    """Boltz-1's: s is normalised inside."""

    def __init__(self, c_s: int, c_z: int, num_heads: int, inf: float = 1e6) -> None:
        super().__init__(c_s, c_z, num_heads, inf)
        self.initial_norm, self.norm_s = True, nn.LayerNorm(c_s)

    def forward(  # type: ignore[override]
        self, s: Tensor, z: Tensor, mask: Tensor, multiplicity: int = 1, to_keys: Any = None,
        model_cache: Any = None,
    ) -> Tensor:  # fmt: skip
        s = self.norm_s(s)
        return super().forward(s, z, mask, s, multiplicity)


class AdaLN(nn.Module):
    def __init__(self, dim: int, dim_single_cond: int) -> None:
        super().__init__()
        self.a_norm = nn.LayerNorm(dim, elementwise_affine=False, bias=False)
        self.s_norm = nn.LayerNorm(dim_single_cond, bias=False)
        self.s_scale = linear(dim_single_cond, dim, bias=True)
        self.s_bias = linear(dim_single_cond, dim)

    def forward(self, a: Tensor, s: Tensor) -> Tensor:
        a, s = self.a_norm(a), self.s_norm(s)
        return torch.sigmoid(self.s_scale(s)) * a + self.s_bias(s)  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x, gates = x.chunk(2, dim=-1)
        return F.silu(gates) * x


class ConditionedTransitionBlock(nn.Module):
    def __init__(self, dim_single: int, dim_single_cond: int, expansion_factor: int = 2) -> None:
        super().__init__()
        inner = dim_single * expansion_factor
        self.adaln = AdaLN(dim_single, dim_single_cond)
        self.swish_gate = nn.Sequential(linear(dim_single, 2 * inner), SwiGLU())
        self.a_to_b, self.b_to_a = linear(dim_single, inner), linear(inner, dim_single)
        out = linear(dim_single_cond, dim_single, bias=True)
        self.output_projection = nn.Sequential(out, nn.Sigmoid())

    def forward(self, a: Tensor, s: Tensor) -> Tensor:
        a = self.adaln(a, s)
        b = self.swish_gate(a) * self.a_to_b(a)
        return self.output_projection(s) * self.b_to_a(b)  # type: ignore[no-any-return]


class DiffusionTransformerLayer(nn.Module):
    def __init__(self, heads: int, dim: int, dim_single_cond: int) -> None:
        super().__init__()
        self.adaln = AdaLN(dim, dim_single_cond)
        self.pair_bias_attn = AttentionPairBias(dim, num_heads=heads, compute_pair_bias=False)
        self.output_projection_linear = linear(dim_single_cond, dim, bias=True)
        self.output_projection = nn.Sequential(self.output_projection_linear, nn.Sigmoid())
        self.transition = ConditionedTransitionBlock(dim, dim_single_cond)
        self.post_lnorm = nn.Identity()

    def forward(
        self, a: Tensor, s: Tensor, bias: Tensor, mask: Tensor, to_keys: Any = None,
        multiplicity: int = 1,
    ) -> Tensor:  # fmt: skip
        b = self.adaln(a, s)
        b = self.pair_bias_attn(b, bias, mask, b, multiplicity)
        a = a + self.output_projection(s) * b
        return self.post_lnorm(a + self.transition(a, s))  # type: ignore[no-any-return]


def dropout_mask(dropout: float, z: Tensor, training: bool, columnwise: bool = False) -> Tensor:
    """`[B, I, 1, 1]`, or `[B, 1, J, 1]`: drawn even where nothing is dropped."""
    rate = dropout * training
    shape = (z.shape[0], 1, z.shape[2], 1) if columnwise else (z.shape[0], z.shape[1], 1, 1)
    given = maths.Drawn.next(shape)
    if given is not None:
        return given
    d = torch.rand(shape, dtype=torch.float32, device=z.device) >= rate
    return d * 1.0 / (1.0 - rate)


class PairformerNoSeqLayer(nn.Module):
    def __init__(
        self, token_z: int, dropout: float = 0.25, pairwise_head_width: int = 32,
        pairwise_num_heads: int = 4, post_layer_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token_z, self.dropout, self.post_layer_norm = token_z, dropout, post_layer_norm
        sizes = (token_z, pairwise_head_width, pairwise_num_heads)
        self.tri_mul_out = TriangleMultiplicationOutgoing(token_z)
        self.tri_mul_in = TriangleMultiplicationIncoming(token_z)
        self.tri_att_start = TriangleAttention(*sizes)
        self.tri_att_end = TriangleAttentionEndingNode(*sizes)
        self.transition_z = Transition(token_z, token_z * 4)

    def forward(self, z: Tensor, pair_mask: Tensor, **how: Any) -> Tensor:
        return pairs(self, z, pair_mask)


def pairs(self: Any, z: Tensor, mask: Tensor) -> Tensor:
    for module in (self.tri_mul_out, self.tri_mul_in, self.tri_att_start):
        z = z + dropout_mask(self.dropout, z, self.training) * module(z, mask=mask)
    drop = dropout_mask(self.dropout, z, self.training, columnwise=True)
    z = z + drop * self.tri_att_end(z, mask=mask)
    out: Tensor = z + self.transition_z(z)
    return out


class PairformerLayer(PairformerNoSeqLayer):
    def __init__(
        self, token_s: int, token_z: int, num_heads: int = 16, v2: bool = True, **pairs: Any
    ) -> None:
        super().__init__(token_z, **pairs)
        self.num_heads, self.pre_norm_s = num_heads, nn.LayerNorm(token_s)
        self.attention = AttentionPairBias(token_s, token_z, num_heads)
        self.transition_s, self.s_post_norm = Transition(token_s, token_s * 4), nn.Identity()

    def forward(  # type: ignore[override]
        self, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, **how: Any
    ) -> tuple[Tensor, Tensor]:
        z = pairs(self, z, pair_mask)
        with torch.autocast(s.device.type, enabled=False):
            normed = self.pre_norm_s(wide(s))
            s = wide(s) + self.attention(normed, wide(z), wide(mask), normed)
            s = s + self.transition_s(s)
        return self.s_post_norm(s), z


class MSALayer(nn.Module):
    def __init__(
        self, msa_s: int, token_z: int, msa_dropout: float, z_dropout: float, **pairs: Any
    ) -> None:
        super().__init__()
        self.msa_dropout, self.msa_transition = msa_dropout, Transition(msa_s, msa_s * 4)
        self.pair_weighted_averaging = PairWeightedAveraging(msa_s, token_z, 32, 8)
        self.pairformer_layer = PairformerNoSeqLayer(token_z, z_dropout, **pairs)
        self.outer_product_mean = OuterProductMean(msa_s, 32, token_z)

    def forward(
        self, z: Tensor, m: Tensor, token_mask: Tensor, msa_mask: Tensor, **how: Any
    ) -> tuple[Tensor, Tensor]:
        drop = dropout_mask(self.msa_dropout, m, self.training)
        m = m + drop * self.pair_weighted_averaging(m, z, token_mask)
        m = m + self.msa_transition(m)
        z = z + self.outer_product_mean(m, msa_mask)
        return self.pairformer_layer(z, token_mask), m

"""The mathematics that modules of Boltz, OpenFold3 and Protenix share, written out plainly.

Letters: B batch, S sequences, N positions, C channels, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layer = Callable[[Tensor], Tensor]


class LayerNorm(nn.Module):
    """A project's own layer norm; weight and bias may be None."""

    def __init__(self, size: int, *, scale: bool = True, offset: bool = True) -> None:
        super().__init__()
        self.c_in, self.eps = (size,), 1e-5
        self.weight = nn.Parameter(torch.ones(size)) if scale else None
        self.bias = nn.Parameter(torch.zeros(size)) if offset else None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (
            None if t is None else t.to(x.dtype) for t in (self.weight, self.bias)
        )  # fmt: skip
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.c_in, weight, bias, self.eps)


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)


def wide(x: Tensor) -> Tensor:
    """A cast to float32 that leaves float64 as it is."""
    return x if x.dtype is torch.float64 else x.float()


def triangle_product(a: Tensor, b: Tensor, outgoing: bool) -> Tensor:
    return torch.einsum("...ikc,...jkc->...ijc" if outgoing else "...kic,...kjc->...ijc", a, b)


def attend(
    q: Tensor, k: Tensor, v: Tensor, heads: int, *biases: Tensor
) -> Tensor:  # q, k, v [*, N, H D]
    """softmax(q k^T / sqrt(D) + biases) v, heads side by side."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(-2, -3) for t in (q, k, v))
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    for bias in biases:
        logits = logits + bias
    return (torch.softmax(logits, -1) @ v).transpose(-2, -3).flatten(-2)


def triangle_attention(
    x: Tensor, mask: Tensor | None, norm: Layer, pair: Layer, mha: Any, heads: int, *,
    starting: bool, inf: float = 1e9, turned: bool = False,
) -> Tensor:  # fmt: skip
    """Around either node; `turned`: with its bias transposed; `mha` has linear_q, k, v, g and o."""
    mask = x.new_ones(x.shape[:-1]) if mask is None else mask
    if not starting:
        x, mask = x.transpose(-2, -3), mask.transpose(-1, -2)
    x = norm(x)
    keys = (inf * (mask - 1))[..., :, None, None, :]
    bias = pair(x).movedim(-1, -3)[..., None, :, :, :]
    bias = bias.transpose(-1, -2) if turned else bias
    o = attend(mha.linear_q(x), mha.linear_k(x), mha.linear_v(x), heads, keys, bias)
    out: Tensor = mha.linear_o(torch.sigmoid(mha.linear_g(x)) * o)
    return out if starting else out.transpose(-2, -3)


def weighted_averages(
    m: Tensor, z: Tensor, mask: Tensor | None, norm_m: Layer, norm_z: Layer, value: Layer,
    gate: Layer, pair: Layer, out: Layer, inf: float,
) -> Tensor:  # fmt: skip
    """gate * (softmax(linear(z)) v), projected: attention without q and k."""
    m, z = norm_m(m), norm_z(z)
    bias = pair(z).movedim(-1, -3)
    if mask is not None:
        bias = bias + (inf * (mask - 1))[..., None, :, :]
    v = value(m).unflatten(-1, (bias.shape[-3], -1))
    o = torch.einsum("...hij,...sjhd->...sihd", torch.softmax(bias, -1), v).flatten(-2)
    return out(torch.sigmoid(gate(m)) * o)


def outer_product(m: Tensor, mask: Tensor | None, norm: Layer, a: Layer, b: Layer) -> Any:
    """Sum over sequences of the outer products, and how many sequences each pair shares."""
    m = norm(m)
    mask = m.new_ones(m.shape[:-1]) if mask is None else mask.to(m.dtype)
    left, right = a(m) * mask[..., None], b(m) * mask[..., None]
    outer = torch.einsum("...sic,...sje->...ijce", wide(left), wide(right)).flatten(-2)
    return outer, torch.einsum("...si,...sj->...ij", mask, mask)[..., None]


class Attention(nn.Module):
    """The layers of heads side by side, with a gate."""

    def __init__(self, c: int, c_hidden: int, no_heads: int, q_bias: bool = False) -> None:
        super().__init__()
        self.c_hidden, self.no_heads, self.gating = c_hidden, no_heads, True
        width = c_hidden * no_heads
        self.linear_q = linear(c, width, q_bias)
        self.linear_k, self.linear_v = linear(c, width), linear(c, width)
        self.linear_o, self.linear_g = linear(width, c), linear(c, width)
        self.sigmoid = nn.Sigmoid()


class TriangleAttention(nn.Module):
    """Its layers; a project names the one that makes the bias, and has a forward of its own."""

    _pair, _norm = "linear", LayerNorm

    def __init__(
        self, c_in: int, c_hidden: int, no_heads: int, starting: bool = True, inf: float = 1e9
    ) -> None:
        super().__init__()
        self.c_in, self.c_hidden, self.no_heads = c_in, c_hidden, no_heads
        self.starting, self.inf, self.layer_norm = starting, inf, self._norm(c_in)
        self.add_module(self._pair, linear(c_in, no_heads))
        self.mha = Attention(c_in, c_hidden, no_heads)

    def _attend(self, x: Tensor, mask: Tensor | None, turned: bool = False) -> Tensor:
        return triangle_attention(
            x, mask, self.layer_norm, self.get_submodule(self._pair), self.mha, self.no_heads,
            starting=self.starting, inf=self.inf, turned=turned,
        )  # fmt: skip


class TriangleMultiplication(nn.Module):
    """Its layers but the projections, as OpenFold3 and Protenix name them."""

    _outgoing, _norm = True, LayerNorm

    def __init__(self, c_z: int, c_hidden: int, bias: bool = False) -> None:
        super().__init__()
        self.c_z, self.c_hidden, self.sigmoid = c_z, c_hidden, nn.Sigmoid()
        self.linear_g, self.linear_z = linear(c_z, c_z, bias), linear(c_hidden, c_z, bias)
        self.layer_norm_in, self.layer_norm_out = self._norm(c_z), self._norm(c_hidden)

    def forward(self, z: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        mask = z.new_ones(z.shape[:-1]) if mask is None else mask
        z = self.layer_norm_in(z)
        a, b = (half * mask[..., None] for half in self._halves(z))
        x = self.linear_z(self.layer_norm_out(triangle_product(a, b, self._outgoing)))
        return x * torch.sigmoid(self.linear_g(z))  # type: ignore[no-any-return]


class TriangleMultiplicationOutgoing(TriangleMultiplication):
    def __init__(self, c_z: int, c_hidden: int) -> None:
        super().__init__(c_z, c_hidden)
        self.linear_a_p, self.linear_a_g, self.linear_b_p, self.linear_b_g = (
            linear(c_z, c_hidden) for _ in range(4)
        )

    def _halves(self, z: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.sigmoid(self.linear_a_g(z)) * self.linear_a_p(z)
        return a, torch.sigmoid(self.linear_b_g(z)) * self.linear_b_p(z)


class TriangleMultiplicationIncoming(TriangleMultiplicationOutgoing):
    _outgoing = False


class OuterProductMean(nn.Module):
    """As OpenFold3 and Protenix have it."""

    _norm = LayerNorm

    def __init__(self, c_m: int, c_z: int, c_hidden: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.c_m, self.c_z, self.c_hidden, self.eps = c_m, c_z, c_hidden, eps
        self.layer_norm = self._norm(c_m)
        self.linear_1, self.linear_2 = linear(c_m, c_hidden), linear(c_m, c_hidden)
        self.linear_out = linear(c_hidden**2, c_z, bias=True)

    def forward(self, m: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
        outer, shared = outer_product(m, mask, self.layer_norm, self.linear_1, self.linear_2)
        return self.linear_out(outer.to(m.dtype)) / (shared + self.eps)  # type: ignore[no-any-return]


class Drawn:
    """Dropout masks that are handed out instead of drawn, one after the other."""

    masks: list[Tensor] | None = None

    @classmethod
    def next(cls, shape: tuple[int, ...]) -> Tensor | None:
        if not cls.masks:
            return None
        mask = cls.masks.pop(0)
        assert mask.shape == shape
        return mask


class DropoutRowwise(nn.Module):
    """One mask for all rows: `[*, 1, J, C]`."""

    def __init__(self, r: float) -> None:
        super().__init__()
        self.r, self.batch_dim, self.dropout = r, [-3], nn.Dropout(r)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-3], 1, *x.shape[-2:])
        mask = Drawn.next(shape)
        return x * (self.dropout(x.new_ones(shape)) if mask is None else mask)

"""Building blocks of the model: Linear, LayerNorm, Attention, dropout, small helpers.

The model has one LayerNorm class and one attention function, so that a fused op
replaces each in one place.

Letters: S sequences, R residues, Q queries, K keys, H heads, C channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.base.shapes import Float, Int, Shaped
from evofeed.trainer.model.compiled import compilable

_TRUNCATED_STD = 0.87962566103423978  # of a unit normal truncated to [-2, 2]

FLOAT32_IN_FLOAT16 = frozenset({"global_query", "outer_product", "triangle_product"})
"""Operators computed in float32 in float16 runs: their sums may pass 65,504, or their divisors be
below 6e-8. Layer norms, softmax, distances, the structure module and all losses use float32 inside
in any half precision."""


class Linear(nn.Linear):
    """`nn.Linear` with one of AF2's initialisations, by the names that OpenFold gives them.

    `default` (LeCun) and `relu` (He) draw a normal truncated at two sigma, rescaled
    to the standard deviation before truncation; `glorot` is uniform; `normal` is
    untruncated; `gating` is zero weight with bias one (the gate starts almost
    open); `final` is zero, so that every residual branch starts as the identity.

    Source: AF2 SI 1.11.4.
    """

    def __init__(self, c_in: int, c_out: int, bias: bool = True, init: str = "default") -> None:
        self._init = init
        super().__init__(c_in, c_out, bias=bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws the weights again with the initialisation given at construction."""
        weight, init = self.weight, self._init
        if self.bias is not None:
            self.bias.fill_(1.0 if init == "gating" else 0.0)
        if init in ("default", "relu"):
            scale = 2.0 if init == "relu" else 1.0
            sigma = math.sqrt(scale / weight.shape[1]) / _TRUNCATED_STD
            nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)
        elif init == "glorot":
            nn.init.xavier_uniform_(weight)
        elif init == "normal":
            weight.normal_(0.0, weight.shape[1] ** -0.5)
        elif init in ("gating", "final"):
            weight.zero_()
        else:
            raise ValueError(f"init is {init!r}: use default, relu, glorot, normal, gating, final")


class OneLinear(nn.Module):
    """A `Linear` under the name `linear`, as in OpenFold's embedders and heads of one layer."""

    def __init__(self, c_in: int, c_out: int, init: str = "default") -> None:
        super().__init__()
        self.linear = Linear(c_in, c_out, init=init)

    def forward(self, x: Float[Tensor, "*B c_in"]) -> Float[Tensor, "*B c_out"]:
        """The layer."""
        return self.linear(x)  # type: ignore[no-any-return]


class ExactLinear(Linear):
    """A `Linear` of few rows in float32, for the structure module."""

    def forward(self, x: Float[Tensor, "*B c_in"], relu: bool = False) -> Float[Tensor, "*B c_out"]:
        """The layer, with `relu` followed by a ReLU."""
        out = F.linear(x, self.weight, self.bias)
        return torch.relu(out) if relu else out


class LayerNorm(nn.Module):
    """Layer norm over the last axis, affine, statistics in float32, output as the input.

    It keeps the activation's own dtype under autocast (which would return
    float32 and double the memory traffic of every block).
    """

    def __init__(self, c_in: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.c_in = (c_in,)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(c_in))
        self.bias = nn.Parameter(torch.zeros(c_in))

    def forward(self, x: Float[Tensor, "*B c"]) -> Float[Tensor, "*B c"]:
        """Normalised `x`."""
        with full_precision(x):
            # On the CPU torch accumulates the gradients of weight and bias row by row in x's dtype:
            # in bfloat16 an error of 4 % after 1,000 rows, 25 % after 65,000 (torch 2.13).
            inside = at_least_float32(x) if x.device.type == "cpu" else x
            weight, bias = self.weight.to(inside.dtype), self.bias.to(inside.dtype)
            return F.layer_norm(inside, self.c_in, weight, bias, self.eps).to(x.dtype)


class SharedDropout(nn.Module):
    """Dropout whose mask is shared along one axis: AF2's DropoutRowwise and DropoutColumnwise.

    Args:
        r: probability that an entry is dropped; survivors are scaled by 1/(1-r).
        shared_dim: the axis along which the mask repeats (-3 rowwise, -2
            columnwise), or None for ordinary dropout.
    """

    def __init__(self, r: float, shared_dim: int | None = None) -> None:
        super().__init__()
        self.r = r
        self.shared_dim = shared_dim

    def forward(self, x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """`x` with entries dropped in training, unchanged in evaluation."""
        if not self.training or self.r == 0.0:
            return x
        return x * self.sample_mask(x)

    def sample_mask(self, x: Tensor) -> Tensor:
        """A fresh mask, already scaled by 1/(1-r), that broadcasts against `x`."""
        shape = list(x.shape)
        if self.shared_dim is not None:
            shape[self.shared_dim] = 1
        return F.dropout(x.new_ones(shape), self.r, training=True)


def checkpointed(block: Callable[..., Any], *args: Any, enabled: bool, **options: Any) -> Any:
    """`block(*args, **options)`, with activations recomputed in the backward pass if `enabled`."""
    if enabled and torch.is_grad_enabled():
        return checkpoint(block, *args, use_reentrant=False, **options)
    return block(*args, **options)


def full_precision(x: Tensor) -> AbstractContextManager[None]:
    """A context without autocast: operators inside keep the dtype of their inputs."""
    context: AbstractContextManager[None] = torch.autocast(x.device.type, enabled=False)
    return context


@contextmanager
def exact_products() -> Iterator[None]:
    """A context in which float32 matrix products are never TF32, whatever the run's precision."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller set it by backend, and torch does not allow to mix the two
        matmul: Any = torch.backends.cuda.matmul
        before, matmul.fp32_precision = matmul.fp32_precision, "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = before
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def in_float32(operator: str, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors in float32, and no autocast, if they are float16 and the operator needs it."""
    if operator not in FLOAT32_IN_FLOAT16 or tensors[0].dtype is not torch.float16:
        yield tensors
        return
    with full_precision(tensors[0]):
        yield tuple(x.float() for x in tensors)


def as_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias in the logits' dtype; clamped in float16, as -inf gives nan if all keys are masked."""
    return (bias.clamp(min=-3e4) if dtype is torch.float16 else bias).to(dtype)


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32 if it is in half precision, else unchanged (float64 stays)."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def one_hot(
    index: Int[Tensor, "*B"], num_classes: int, dtype: torch.dtype
) -> Float[Tensor, "*B n"]:
    """One-hot rows by comparison: `F.one_hot` would check the values and wait for the GPU."""
    classes = torch.arange(num_classes, device=index.device)
    return (index[..., None] == classes).to(dtype)


def mask_bias(mask: Float[Tensor, "*B"], inf: float) -> Float[Tensor, "*B"]:
    """Attention bias of a 0/1 mask: 0 where allowed, `-inf` (a large number) elsewhere."""
    return inf * (mask - 1)


def gated_attention(
    q: Float[Tensor, "*B Q C"],
    k: Float[Tensor, "*B K C"],
    v: Float[Tensor, "*B K C"],
    biases: Sequence[Tensor],
    gate: Float[Tensor, "*B Q C"] | None = None,
) -> Float[Tensor, "*B Q C"]:
    """sigmoid(gate) * softmax(q k^T + sum of biases) v: all attention of the model except IPA.

    Args:
        q: queries, already scaled by 1/sqrt(C).
        biases: terms that broadcast against the logits `[*B, Q, K]`, added in order.
        gate: gate before its sigmoid, or None for ungated attention.

    Source: AF2 SI algorithm 7, lines 2 to 6.
    """
    single = q.shape[-2] == 1  # a matrix product for each query would be mostly overhead
    if q.device.type == "cpu" and not (single or torch.is_grad_enabled()):
        out = _without_logits(q, k, v, biases)
        return out if gate is None else out * torch.sigmoid(gate)
    if single:
        with full_precision(q):
            out = _single_query_attention(q, k, v, biases)
    else:
        logits = torch.matmul(q, k.transpose(-1, -2))
        for bias in biases:
            logits = logits + bias
        with full_precision(logits):  # autocast would keep the weights in float32
            weights = torch.softmax(logits, dim=-1)
        out = torch.matmul(weights, v)
    return out if gate is None else out * torch.sigmoid(gate)


@compilable
def _single_query_attention(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor]) -> Tensor:
    """Ungated attention with one query per batch entry and head."""
    logits = (q * k).sum(-1)[..., None, :]
    for bias in biases:
        logits = logits + bias
    weights = torch.softmax(logits, dim=-1)
    return torch.sum(weights.transpose(-1, -2) * v, dim=-2, keepdim=True)


def _without_logits(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor]) -> Tensor:
    """Attention that stores no logits, as a CPU's memory is slow; it has no gradient."""
    batch = math.prod(q.shape[:-3])  # 0 on a rank without rows

    def flat(x: Tensor) -> Tensor:
        return x.expand(*q.shape[:-3], *x.shape[-3:]).reshape(batch, *x.shape[-3:])

    nonzero = [bias for bias in biases if bias.any()]  # biases of unpadded masks are zero
    bias = flat(sum(nonzero[1:], nonzero[0])) if nonzero else None
    out = F.scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=bias, scale=1.0)
    return out.reshape(q.shape)


class Attention(nn.Module):
    """Multi-head attention with additive biases; `gating` by a sigmoid of the queries' input.

    The output has as many channels as the queries' input; `c_hidden` is the width of one head.
    """

    def __init__(
        self, c_q: int, c_k: int, c_v: int, c_hidden: int, no_heads: int, gating: bool = True
    ) -> None:
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.gating = gating
        width = c_hidden * no_heads
        self.linear_q = Linear(c_q, width, bias=False, init="glorot")
        self.linear_k = Linear(c_k, width, bias=False, init="glorot")
        self.linear_v = Linear(c_v, width, bias=False, init="glorot")
        self.linear_o = Linear(width, c_q, init="final")
        if gating:
            self.linear_g = Linear(c_q, width, init="gating")

    def forward(
        self,
        q_x: Float[Tensor, "*B Q c_q"],
        kv_x: Float[Tensor, "*B K c_k"],
        biases: Sequence[Tensor] = (),
    ) -> Float[Tensor, "*B Q c_q"]:
        """Attention of `q_x` to `kv_x`; biases broadcast against `[*B, H, Q, K]`."""
        q = self._heads(self.linear_q(q_x)) * self.c_hidden**-0.5
        k = self._heads(self.linear_k(kv_x))
        v = self._heads(self.linear_v(kv_x))
        gate = self._heads(self.linear_g(q_x)) if self.gating else None
        out = gated_attention(q, k, v, [as_bias(bias, q.dtype) for bias in biases], gate)
        out = out.transpose(-2, -3).flatten(-2)
        return self.linear_o(out)  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Shaped[Tensor, "..."]:
        return torch.unflatten(x, -1, (self.no_heads, self.c_hidden)).transpose(-2, -3)

"""A whole attention of AF2 as one op: norm, projections, core, gate, output, residual.

Used for MSA rows, MSA columns, triangles around both nodes and the template stack. Activations
stay in the layout of the input; columns and ending nodes differ from rows and starting nodes only
in the attending axis.

Saved for the backward pass, per position: q, k, v and gate (4 H D numbers), the attention's output
(H D), up to three float32 scalars a head, and the normalised input where that is small.

Letters: B batch, R and N the two position axes, C channels, H heads, D head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from evofeed.kernels.ops.attention.inputs import BackwardInputs, MaskTerms
from evofeed.kernels.ops.attention.op import (
    MAX_HEAD_WIDTH,
    prepare_mask,
    run_backward,
    run_forward,
    scaled_bias,
)
from evofeed.kernels.ops.gated_attention import reference
from evofeed.kernels.ops.gated_attention.hopper import launch as hopper
from evofeed.kernels.ops.gated_attention.output import gated_output, output_grads
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.pair_bias.op import heads_last
from evofeed.kernels.runtime.backend import compute_dtype, launchable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.projection import Drop, keeps, norm_rows, pack, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors


class OtherPairs(Protocol):
    """The exchange of the attention bias between GPUs that each have some of the pairs."""

    def gather(self, bias: Tensor) -> Tensor:
        """`[B, H, N, N]` from this GPU's rows `[B, H, n, N]`."""

    def reduce(self, dbias: Tensor) -> Tensor:
        """The adjoint of `gather`."""


class Plan(NamedTuple):
    """Options of one call."""

    heads: int
    eps: float
    columns: bool  # axis R attends, not axis N
    turned: bool  # the bias of query q and key k comes from the pair (k, q)
    residual: bool
    drop_columnwise: bool
    bias_scale: float
    dtype: torch.dtype

    @property
    def transposes(self) -> bool:
        """True if the bias computed from x is transposed."""
        return self.columns != self.turned

    def drop(self, mask: Tensor | None, x: Tensor) -> Drop:
        """A dropout mask with its layout for x."""
        return Drop(mask, (x.shape[1], x.shape[2]), self.drop_columnwise)


def _attending_last(t: Tensor, plan: Plan) -> Tensor:
    """`[B, rows, N, ...]` view of a `[B, R, N, ...]` tensor: the attending axis last."""
    return t.transpose(1, 2) if plan.columns else t


def _split_heads(packed: Tensor, like: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as `[B, rows, N, H, D]` views of a packed `[M, 4 H D or more]` tensor."""
    B, R, N, H, D = like.shape
    s_m = packed.stride(0)
    strides = (R * N * s_m, N * s_m, s_m, D, 1)
    parts = [packed.as_strided((B, R, N, H, D), strides, n * H * D) for n in range(3)]
    q, k, v = (_attending_last(part, plan) for part in parts)
    return q, k, v


def _pack_projections(parts: list[Tensor], pair: Tensor | None, dtype: torch.dtype) -> Tensor:
    """q, k, v, gate and pair weights as one matrix, the last padded to a multiple of 16 rows.

    Rows of the gradient are then a multiple of 16 numbers: Triton loads them 16 bytes wide.
    """
    if pair is None:
        return pack(parts, dtype)
    parts = [*parts, pair]
    return pack(parts, dtype, sum(part.shape[0] for part in parts) + -pair.shape[0] % 16)


class _GatedAttention(Operator, name="gated_attention"):
    options = (
        "int heads, float eps, bool columns, bool turned, bool residual, "
        "bool drop_columnwise, float bias_scale, ScalarType dtype"
    )
    saved_inputs = (0, 3, 4, 9, 13)  # x, norm_weight, norm_bias, g_bias, drop_mask

    @staticmethod
    def forward(tensors: Tensors, *options: Any, others: OtherPairs | None = None) -> Results:
        """With `others` x has some rows (or columns) of the pairs, and all pairs make the bias."""
        plan = Plan(*options)
        (
            x, bias, mask, norm_weight, norm_bias, q, k, v, g, g_bias, o, o_bias, pair, drop_mask,
        ) = tensors  # fmt: skip
        B, R, N, C = x.shape
        width = q.shape[0]
        D = width // plan.heads
        packed_w = _pack_projections([q, k, v, g], pair, plan.dtype)
        normed, stats, pair_bias = norm_rows(
            x.view(-1, C), norm_weight, norm_bias, plan.eps, plan.dtype,
            pair_weight=None if pair is None else packed_w[4 * width : 4 * width + plan.heads],
            pair_length=N, pair_rows=R, transpose_pair=plan.transposes, pair_scale=D**0.5,
        )  # fmt: skip
        qkvg = project(normed, packed_w[: 4 * width])  # the gate's bias is added later
        saved_normed = normed if keeps(normed.shape, plan.dtype) else None
        del normed
        if pair_bias is None:
            ready = scaled_bias(bias, D**-0.5 * plan.bias_scale, plan.dtype)
        else:
            ready = pair_bias if others is None else others.gather(pair_bias)
        masked = None
        if mask is not None:
            masked = prepare_mask(_attending_last(mask, plan), D**-0.5, plan.dtype)
        attended = torch.empty((B, R, N, plan.heads, D), dtype=plan.dtype, device=x.device)
        lse = run_forward(
            *_split_heads(qkvg, attended, plan), ready, masked, D**-0.5,
            _attending_last(attended, plan),
        )  # fmt: skip
        out_weight = pack([o], plan.dtype)
        drop = plan.drop(drop_mask, x)
        gate = qkvg[:, 3 * width :]
        result = gated_output(attended, gate, g_bias, out_weight, o_bias, x, drop, plan.residual)
        return [
            result, ready, packed_w, stats, saved_normed, qkvg, attended, lse, out_weight,
            *(masked or (None, None)),
        ]  # fmt: skip

    @staticmethod
    def backward(tensors: Tensors, *options: Any, others: OtherPairs | None = None) -> Results:
        plan = Plan(*options)
        (
            dout, x, gamma, beta, g_bias, drop_mask, ready, packed_w, stats, normed, qkvg,
            attended, lse, out_weight, term, factor,
        ) = tensors  # fmt: skip
        B, R, N, C = x.shape
        H, D = attended.shape[3:]
        width, M, drop = H * D, B * R * N, plan.drop(drop_mask, x)
        makes_bias = packed_w.shape[0] > 4 * width
        flat, dout = x.view(M, C), dout.contiguous().view(M, C)
        dpacked = torch.empty((M, packed_w.shape[0]), dtype=plan.dtype, device=x.device)
        do = torch.empty_like(attended)
        # the norm's backward pass reads dout, and sums it for the output's bias
        residual_sums = plan.residual and drop_mask is None and dout.dtype is plan.dtype
        residual_sums = residual_sums and not hopper.fits(x, width, plan.dtype)
        delta, out_sums, dwo = output_grads(
            dout, out_weight, attended, qkvg[:, 3 * width :], g_bias, do,
            dpacked[:, 3 * width : 4 * width], drop, columns=plan.columns, sums=not residual_sums,
            dtype=gamma.dtype,
        )  # fmt: skip
        masked = None if term is None else MaskTerms(term, factor)
        dbias = run_backward(BackwardInputs(
            _attending_last(do, plan), *_split_heads(qkvg, attended, plan), ready, masked, lse,
            delta, D**-0.5, _split_heads(dpacked, attended, plan),
        ))  # fmt: skip
        if makes_bias:  # [B, H, q, k] -> one column a head after the other gradients
            assert dbias is not None
            dbias = dbias if others is None else others.reduce(dbias)
            heads_last(dbias, dpacked[:, 4 * width :], plan.transposes)
        rebuilt = None
        if normed is None:
            normed = rebuilt = torch.empty_like(flat, dtype=plan.dtype)
        dx, norm_sums = norm_rows_grad(
            project(dpacked, packed_w.t()), flat, stats, gamma, beta,
            dout if plan.residual else None, rebuilt, residual_sum=residual_sums,
        )  # fmt: skip
        dw = weight_grad(dpacked, normed, gamma.dtype)
        of_norm, dg_bias, *rest = column_sums([norm_sums, *out_sums], gamma.dtype)
        dwo = rest[1].view(out_weight.shape) if dwo is None else dwo
        dgamma, dbeta, *last = torch.split(of_norm, C)
        dbias_in = None if makes_bias or dbias is None else dbias / plan.bias_scale
        dpair = dw[4 * width : 4 * width + H] if makes_bias else None
        return [
            dx.view(x.shape), dbias_in, None, dgamma, dbeta, *torch.split(dw[: 4 * width], width),
            dg_bias, dwo, (last if residual_sums else rest)[0], dpair, None,
        ]  # fmt: skip


def gated_attention_fits(x: Tensor, weights: AttentionWeights, heads: int) -> bool:
    """True if the fused op takes this input: a head width of 8 to 64, at most 512 channels."""
    width, C = weights.q.shape
    D = width // heads
    power_of_2 = D & (D - 1) == 0 and C & (C - 1) == 0
    return (
        x.dim() == 4
        and 8 <= D <= MAX_HEAD_WIDTH
        and power_of_2
        and max(width, C) <= 512
        and weights.readable(x)
    )


def fused_gated_attention(
    x: Tensor, weights: AttentionWeights, heads: int, *, bias: Tensor | None, mask: Tensor | None,
    columns: bool, turned: bool, residual: bool, drop_mask: Tensor | None, drop_columnwise: bool,
    bias_scale: float, eps: float, others: OtherPairs | None = None,
) -> FusedResult:  # fmt: skip
    """`gated_attention`, or None where no kernel takes these.

    With `others` x has some rows of the pairs, `[B, I, N, C]`, or some columns with `columns`;
    `others` exchanges the bias, which depends on all pairs.
    """
    (B, R, N, C), attending = x.shape, x.shape[1] if columns else x.shape[2]
    check_shape("gated_attention", "weights.q", weights.q, weights.q.shape[0], C)
    check_shape("gated_attention", "bias", bias, B, heads, attending, attending)
    check_shape("gated_attention", "mask", mask, B, R, N)
    dropped_along = R if drop_columnwise else N
    check_shape("gated_attention", "drop_mask", drop_mask, B, dropped_along, C)
    fits = gated_attention_fits(x, weights, heads)
    if not (fits and launchable(x, weights.q, bias, mask, drop_mask)):
        return None
    dtype = compute_dtype(x)
    plan = Plan(heads, eps, columns, turned, residual, drop_columnwise, float(bias_scale), dtype)
    tensors = x.contiguous(), bias, mask, *weights.tensors(), drop_mask
    return _GatedAttention.apply(plan, *tensors, others=others)


gated_attention = falls_back_to(reference.gated_attention)(fused_gated_attention)

"""Attention of tokens with pair bias as one op: AF3's diffusion transformer and single track.

Norm (adaptive with s), projections, core, gate, output layer, a gate from s, residual. Copies of
the tokens (the diffusion transformer's noise samples) share a bias, computed once. All products
are cuBLAS's. As in `gated_attention` q, k, v and gate are saved; so are x, the layers of s that it
depends on, and the result before the last gate.

Letters: B batch, R copies, N tokens, C channels of a, K channels of s, H heads, D head width,
M = B * R * N rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.op import adapted, adapted_grads, conditions, rows_fit
from evofeed.kernels.ops.attention.inputs import BackwardInputs, MaskTerms
from evofeed.kernels.ops.attention.op import (
    MAX_HEAD_WIDTH,
    prepare_mask,
    run_backward,
    run_forward,
    scaled_bias,
)
from evofeed.kernels.ops.conditioned_attention import reference
from evofeed.kernels.ops.conditioned_attention.reference import ConditionedAttentionWeights
from evofeed.kernels.ops.gated_attention.output import gate_grads
from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.runtime.backend import compute_dtype, launchable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.gates import gated, gated_grads
from evofeed.kernels.runtime.projection import norm_rows, pack, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors


def _split(packed: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as views like `[B, R, N, H, D]` of packed rows `[M, 4 H D]`."""
    B, R, N, H, D = like.shape
    q, k, v, _ = packed.view(B, R, N, 4, H, D).unbind(3)
    return q, k, v


class _ConditionedAttention(Operator, name="conditioned_attention"):
    options = "int heads, float eps, bool residual, ScalarType dtype"
    saved_inputs = (0, 1, 4, 5, 7, 16)  # a, s, the norm's weight and bias, both gates' biases

    @staticmethod
    def forward(
        tensors: Tensors, heads: int, eps: float, residual: bool, dtype: torch.dtype
    ) -> Results:
        (
            a, s, bias, mask, gamma, beta, gate, gate_bias, shift, q, q_bias, k, v, g, o, last,
            last_bias,
        ) = tensors  # fmt: skip
        width, D = q.shape[0], q.shape[0] // heads
        rows = a.view(-1, a.shape[-1])
        packed = wl = stats = of_x = y = None
        if s is None:
            x, stats, _ = norm_rows(rows, gamma, beta, eps, dtype)
        else:
            flat, packed = s.view(-1, s.shape[-1]), pack([gate, shift], dtype)
            of_s = conditions(flat, gamma, packed, eps, dtype)
            of_x = of_s.layers
            x = adapted(rows, of_x, gate_bias, eps, dtype)
        packed_w, wo = pack([q, k, v, g], dtype), pack([o], dtype)
        qkvg = project(x, packed_w, F.pad(q_bias, (0, 3 * width)))
        attended = torch.empty((*a.shape[:3], heads, D), dtype=dtype, device=a.device)
        masked = None if mask is None else prepare_mask(mask, D**-0.5, dtype)
        ready = scaled_bias(bias, D**-0.5, dtype)
        lse = run_forward(*_split(qkvg, attended), ready, masked, D**-0.5, attended)
        heads_last = attended.view(-1, width)
        update = project(gated(heads_last, qkvg[:, 3 * width :], torch.empty_like(heads_last)), wo)
        if s is None:
            result = rows + update if residual else update.to(a.dtype)
        else:
            y, wl = update, pack([last], dtype)
            result = gated(
                y, project(flat.to(dtype), wl), torch.empty_like(rows), gate_bias=last_bias,
                residual=rows if residual else None,
            )  # fmt: skip
        return [
            result.to(a.dtype).view(a.shape), ready, packed, packed_w, wo, wl, stats, of_x,
            x, qkvg, attended, lse, y, *(masked or (None, None)),
        ]  # fmt: skip

    @staticmethod
    def backward(
        tensors: Tensors, heads: int, eps: float, residual: bool, dtype: torch.dtype
    ) -> Results:
        (
            dout, a, s, gamma, beta, gate_bias, last_bias, ready, packed, packed_w, wo, wl, stats,
            of_x, x, qkvg, attended, lse, y, term, factor,
        ) = tensors  # fmt: skip
        rows, dout = (t.contiguous().view(-1, t.shape[-1]) for t in (a, dout))
        width = wo.shape[1]
        later = dout if residual else None
        ds = dgate = dgate_bias = dshift = dlast = dlast_bias = None
        if s is None:
            dy = dout.to(dtype)
        else:
            flat = s.view(-1, s.shape[-1])
            narrow = flat.to(dtype)
            dy_gate, dy = project(narrow, wl), torch.empty_like(y)
            last_sums = gated_grads(dout, y, dy_gate, dy, gate_bias=last_bias)
            dlast, (dlast_bias,) = (
                weight_grad(dy_gate, narrow), column_sums([last_sums], last_bias.dtype)
            )  # fmt: skip
            of_s = conditions(flat, gamma, packed, eps, dtype, of_x)
        drows, dbias, dwo = _core_grads(
            dy, wo, qkvg, attended, lse, ready, None if term is None else MaskTerms(term, factor)
        )
        dx = project(drows, packed_w.t())
        if s is None:
            da, norm_sums = norm_rows_grad(dx, rows, stats, gamma, beta, later)
            dgamma, dbeta = column_sums([norm_sums], gamma.dtype)[0].chunk(2)
        else:
            da, ds, dgamma, dgate, dgate_bias, dshift = adapted_grads(
                dx, rows, flat, of_s, gamma, gate_bias, packed, eps, later, project(dy_gate, wl.t())
            )
            ds, dbeta = ds.view(s.shape), None
        dq_bias = torch.sum(drows[:, :width], 0, dtype=torch.float32)
        dq, dk, dv, dg = weight_grad(drows, x).chunk(4)
        return [
            da.view(a.shape), ds, dbias, None, dgamma, dbeta, dgate, dgate_bias, dshift, dq,
            dq_bias, dk, dv, dg, dwo, dlast, dlast_bias,
        ]  # fmt: skip


def _core_grads(
    dy: Tensor, wo: Tensor, qkvg: Tensor, attended: Tensor, lse: Tensor, ready: Tensor | None,
    mask: MaskTerms | None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Gradients of q, k, v and gate as rows `[M, 4 H D]`, of the bias, of the output's weight."""
    width, D, drows = wo.shape[1], attended.shape[-1], torch.empty_like(qkvg)
    do, product = project(dy, wo.t()), torch.empty_like(attended)
    gate, dgate = qkvg[:, 3 * width :], drows[:, 3 * width :]
    delta, _ = gate_grads(do, attended, gate, None, do, dgate, product, columns=False)
    dbias = run_backward(BackwardInputs(
        do.view(attended.shape), *_split(qkvg, attended), ready, mask, lse, delta, D**-0.5,
        _split(drows, attended),
    ))  # fmt: skip
    return drows, dbias, weight_grad(dy, product.view(-1, width))


def conditioned_attention_fits(
    a: Tensor, s: Tensor | None, weights: ConditionedAttentionWeights, heads: int
) -> bool:
    """True if the fused op takes these: `[B, R, N, C]`, heads of 8 to 64 numbers."""
    width = weights.q.shape[0]
    return (
        a.dim() == 4 and 8 <= width // heads <= MAX_HEAD_WIDTH and width <= 1024
        and (s is None) == (weights.last is None)
        and rows_fit(a, a if s is None else s) and weights.readable(a)
    )  # fmt: skip


@falls_back_to(reference.conditioned_attention)
def conditioned_attention(
    a: Tensor, s: Tensor | None, weights: ConditionedAttentionWeights, heads: int, *,
    bias: Tensor | None, mask: Tensor | None, residual: bool, eps: float,
) -> FusedResult:  # fmt: skip
    """Norm (adaptive with s), attention, gate, output layer, a gate from s, residual."""
    (B, R, N, C), op = a.shape, "conditioned_attention"
    for name in ("q", "k", "v", "g"):
        check_shape(op, f"weights.{name}", getattr(weights, name), weights.q.shape[0], C)
    check_shape(op, "weights.o", weights.o, C, weights.q.shape[0])
    check_shape(op, "bias", bias, B, heads, N, N)
    check_shape(op, "mask", mask, B, R, N)
    fits = conditioned_attention_fits(a, s, weights, heads)
    if not (fits and launchable(a, s, weights.q, bias, mask)):
        return None
    s = None if s is None else s.contiguous()
    options = heads, eps, residual, compute_dtype(a)
    return _ConditionedAttention.apply(options, a.contiguous(), s, bias, mask, *weights.tensors())

"""The conditioned transition of AF3's diffusion transformer as one op.

Adaptive norm, two layers (Boltz: three) whose product is the hidden layer, an output layer, a gate
from s, mask, residual. All products are cuBLAS's: a token has hundreds of channels. The inputs and
the results of all products except the gate's are saved; the hidden layer is recomputed.

Letters: M rows, C channels of a, K channels of s, N hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.op import adapted, adapted_grads, conditions, rows_fit
from evofeed.kernels.ops.conditioned_transition import reference
from evofeed.kernels.ops.conditioned_transition.reference import ConditionedWeights
from evofeed.kernels.ops.swiglu.op import hidden_of, layers_grad
from evofeed.kernels.runtime.backend import compute_dtype, launchable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.gates import gated, gated_grads
from evofeed.kernels.runtime.projection import pack, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors


class _ConditionedTransition(Operator, name="conditioned_transition"):
    options = "float eps, bool residual, ScalarType dtype"
    saved_inputs = (0, 1, 2, 3, 5, 11)  # a, s, mask, gamma, both gates' biases

    @staticmethod
    def forward(tensors: Tensors, eps: float, residual: bool, dtype: torch.dtype) -> Results:
        a, s, mask, gamma, gate, bias, shift, silu, value, out, last, last_bias, factor = tensors
        packed, wo, wl = pack([gate, shift], dtype), pack([out], dtype), pack([last], dtype)
        hidden_w = pack([silu, value, *([] if factor is None else [factor])], dtype)
        rows, flat = (t.view(-1, t.shape[-1]) for t in (a, s))
        of_s = conditions(flat, gamma, packed, eps, dtype)
        x = adapted(rows, of_s.layers, bias, eps, dtype)
        layers = project(x, hidden_w)
        y = project(hidden_of(layers, wo.shape[1]), wo)
        row_mask = None if mask is None else mask.reshape(-1)
        result = gated(
            y, project(flat.to(dtype), wl), torch.empty_like(rows), gate_bias=last_bias,
            mask=row_mask, residual=rows if residual else None,
        )  # fmt: skip
        return [result.view(a.shape), packed, hidden_w, wo, wl, of_s.layers, x, layers, y]

    @staticmethod
    def backward(tensors: Tensors, eps: float, residual: bool, dtype: torch.dtype) -> Results:
        dout, a, s, mask, gamma, bias, last_bias, packed, hidden_w, wo, wl, *saved = tensors
        of_x, x, layers, y = saved
        rows, flat, dout = (t.contiguous().view(-1, t.shape[-1]) for t in (a, s, dout))
        narrow, row_mask = flat.to(dtype), None if mask is None else mask.reshape(-1)
        dgate, dy = project(narrow, wl), torch.empty_like(y)
        last_sums = gated_grads(dout, y, dgate, dy, gate_bias=last_bias, mask=row_mask)
        hidden = project(dy, wo.t())  # the hidden layer's gradient until the next line
        dlayers = layers_grad(layers, hidden)
        of_s = conditions(flat, gamma, packed, eps, dtype, of_x)
        da, ds, *adaptive = adapted_grads(
            project(dlayers, hidden_w.t()), rows, flat, of_s, gamma, bias, packed, eps,
            dout if residual else None, project(dgate, wl.t()),
        )  # fmt: skip
        dsilu, dvalue, *dfactor = torch.split(weight_grad(dlayers, x), wo.shape[1])  # Boltz: three
        return [
            da.view(a.shape), ds.view(s.shape), None, *adaptive, dsilu, dvalue,
            weight_grad(dy, hidden), weight_grad(dgate, narrow),
            *column_sums([last_sums], last_bias.dtype), dfactor[0] if dfactor else None,
        ]  # fmt: skip


def conditioned_transition_fits(a: Tensor, s: Tensor, weights: ConditionedWeights) -> bool:
    """True if the fused op takes these: equally many rows, multiples of 8 up to 1024 channels."""
    return rows_fit(a, s) and weights.out.shape[1] % 8 == 0 and weights.readable(a)


@falls_back_to(reference.conditioned_transition)
def conditioned_transition(
    a: Tensor, s: Tensor, weights: ConditionedWeights, *, mask: Tensor | None, residual: bool,
    eps: float,
) -> FusedResult:  # fmt: skip
    """Adaptive norm, silu of one layer times another (or two), a last layer, gate, mask."""
    (C, K), N = (a.shape[-1], s.shape[-1]), weights.silu.shape[0]
    for name, shape in (
        ("gate", (C, K)), ("shift", (C, K)), ("silu", (N, C)), ("value", (N, C)),
        ("factor", (N, C)), ("out", (C, N)), ("last", (C, K)), ("last_bias", (C,)),
    ):  # fmt: skip
        check_shape("conditioned_transition", f"weights.{name}", getattr(weights, name), *shape)
    check_shape("conditioned_transition", "mask", mask, *a.shape[:-1])
    if not (conditioned_transition_fits(a, s, weights) and launchable(a, mask)):
        return None
    options = eps, residual, compute_dtype(a)
    mask = None if mask is None else mask.contiguous()  # a broadcast mask has no rows
    s = s.contiguous()
    return _ConditionedTransition.apply(options, a.contiguous(), s, mask, *weights.tensors())

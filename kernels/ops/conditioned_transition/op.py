"""The conditioned transition of AF3's diffusion transformer as one op.

Adaptive norm, two layers (Boltz: three) whose product is the hidden layer, a last layer, a gate
that s gives, mask, residual. All products are cuBLAS's: a token has hundreds of channels. Beside
the inputs all results of products but the last gate's are kept; the hidden layer is built again.

Letters: M rows, C channels of a, K channels of s, N hidden channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.op import (
    adapted,
    adapted_grads,
    conditions,
    rows_fit,
)
from evofeed.kernels.ops.conditioned_transition import reference
from evofeed.kernels.ops.conditioned_transition.output import gated_sum, gated_sum_grads
from evofeed.kernels.ops.conditioned_transition.reference import ConditionedWeights
from evofeed.kernels.ops.swiglu.hidden import hidden_of, layers_grad
from evofeed.kernels.runtime.backend import compute_dtype, launchable, without_autocast
from evofeed.kernels.runtime.checks import check_one_device, check_shape, check_type, in_type_of
from evofeed.kernels.runtime.projection import pack, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator


class _ConditionedTransition(Operator, name="conditioned_transition"):
    options = "float eps, bool residual, ScalarType dtype"
    kept = (0, 1, 2, 3, 5, 11)  # a, s, mask, gamma, both gates' biases

    @staticmethod
    def forward(
        tensors: Sequence[Any], eps: float, residual: bool, dtype: torch.dtype
    ) -> list[Tensor]:
        a, s, mask, gamma, gate, bias, shift, silu, value, out, last, last_bias, factor = tensors
        packed, wo, wl = pack([gate, shift], dtype), pack([out], dtype), pack([last], dtype)
        hidden_w = pack([silu, value, *([] if factor is None else [factor])], dtype)
        rows, flat = (t.view(-1, t.shape[-1]) for t in (a, s))
        of_s = conditions(flat, gamma, packed, eps, dtype)
        x = adapted(rows, of_s.layers, bias, eps, dtype)
        layers = project(x, hidden_w)
        y = project(hidden_of(layers, wo.shape[1]), wo)
        of_rows = None if mask is None else mask.reshape(-1)
        found = gated_sum(y, project(flat.to(dtype), wl), last_bias, of_rows, rows, residual)
        return [found.view(a.shape), packed, hidden_w, wo, wl, of_s.layers, x, layers, y]

    @staticmethod
    def backward(
        tensors: Sequence[Any], eps: float, residual: bool, dtype: torch.dtype
    ) -> list[Tensor]:
        dout, a, s, mask, gamma, bias, last_bias, packed, hidden_w, wo, wl, *made = tensors
        of_x, x, layers, y = made
        rows, flat, dout = (t.contiguous().view(-1, t.shape[-1]) for t in (a, s, dout))
        narrow, of_rows = flat.to(dtype), None if mask is None else mask.reshape(-1)
        dgate = project(narrow, wl)
        dy, last_sums = gated_sum_grads(dout, y, dgate, last_bias, of_rows)
        hidden = torch.mm(dy, wo)  # its gradient, until the next line
        dlayers = layers_grad(layers, hidden)
        of_s = conditions(flat, gamma, packed, eps, dtype, of_x)
        da, ds, *of_norm = adapted_grads(
            torch.mm(dlayers, hidden_w), rows, flat, of_s, gamma, bias, packed, eps,
            dout if residual else None, torch.mm(dgate, wl),
        )  # fmt: skip
        return [
            da.view(a.shape), ds.view(s.shape), *of_norm, weight_grad(dlayers, x),
            weight_grad(dy, hidden), weight_grad(dgate, narrow),
            *column_sums([last_sums], last_bias.dtype),
        ]  # fmt: skip

    @staticmethod
    def gradients(
        grad: Tensor, found: Sequence[Any], kinds: Sequence[torch.dtype | None], *options: Any
    ) -> list[Tensor | None]:
        da, ds, of_norm, dpacked, dbias, dhidden, dwo, dlast, dlast_bias = found
        dgate, dshift = dpacked.chunk(2)
        dsilu, dvalue, *dfactor = torch.split(dhidden, dwo.shape[1])
        return [
            da, ds, None, of_norm.chunk(2)[0], dgate, dbias, dshift, dsilu, dvalue, dwo, dlast,
            dlast_bias, dfactor[0] if dfactor else None,
        ]  # fmt: skip


def conditioned_transition_fits(a: Tensor, s: Tensor, weights: ConditionedWeights) -> bool:
    """Whether the fused op takes these: as many rows each, multiples of 8 up to 1024 channels."""
    return rows_fit(a, s, weights.out) and weights.out.shape[1] % 8 == 0 and weights.readable()


def conditioned_transition(
    a: Tensor,
    s: Tensor,
    weights: ConditionedWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """mask * sigmoid(last(s)) * out(silu(silu x) * value x * factor x), plus a if `residual`.

    x is the adaptive norm of a conditioned on s.

    Args:
        a: `[..., C]`.
        s: `[..., K]`, what it is conditioned on.
        weights: the parameters; only Boltz has a `factor`.
        mask: `[...]` factor of the update, or None.
        residual: whether a is added.
        eps: of both norms.

    Source: AF3 SI, algorithm 25.
    """
    (C, K), N = (a.shape[-1], s.shape[-1]), weights.silu.shape[0]
    check_type("conditioned_transition", a)
    for name, shape in (
        ("gate", (C, K)), ("shift", (C, K)), ("silu", (N, C)), ("value", (N, C)),
        ("factor", (N, C)), ("out", (C, N)), ("last", (C, K)), ("last_bias", (C,)),
    ):  # fmt: skip
        given = getattr(weights, name)
        check_shape("conditioned_transition", f"weights.{name}", given, *shape)
    check_shape("conditioned_transition", "mask", mask, *a.shape[:-1])
    if not (conditioned_transition_fits(a, s, weights) and launchable(a, mask)):
        check_one_device("conditioned_transition", a, s, weights.out, mask)
        plain = reference.conditioned_transition(
            a, s, in_type_of(a, weights), mask=mask, residual=residual, eps=eps
        )
        return plain.to(a.dtype)
    dtype = compute_dtype(a)
    mask = None if mask is None else mask.contiguous()  # one that is broadcast has no rows
    with without_autocast(a):
        return _ConditionedTransition.apply(
            (eps, residual, dtype), a.contiguous(), s.contiguous(), mask, *weights.tensors()
        )

"""Transitions of AF2 and SwiGLU transitions of Boltz, OpenFold3 and Protenix."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.ops.swiglu.op import swiglu_transition, swiglu_transition_fits
from evofeed.kernels.ops.swiglu.reference import SwigluWeights
from evofeed.kernels.ops.transition.op import transition, transition_fits
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.swap.forms import Form, Linear, Norm, form_of, parts_of
from evofeed.kernels.swap.parameters import mask_fits


def run_transition(
    module: Any, x: Tensor, mask: Tensor | None = None, residual: bool = False, **options: Any
) -> Tensor | None:
    """AF2's transition of the MSA or pairs."""
    norm, first, second, _ = parts_of(module)
    weights = TransitionWeights(
        norm.weight, norm.bias, first.weight, first.bias, second.weight, second.bias
    )
    if not (mask_fits(mask, x) and transition_fits(x, weights)):
        return None
    rows = None if mask is None else mask.expand(x.shape[:-1])
    return transition(x, weights, mask=rows, residual=residual, eps=norm.eps)


Form(
    run_transition,
    {"layer_norm": Norm("x"), "linear_1": Linear("n", "x", True),
     "linear_2": Linear("x", "n", True), "relu": nn.ReLU},
    ("x|z|m", "mask"), ("NNx", "NN"),
)  # fmt: skip


def run_swiglu(
    module: Any, x: Tensor, mask: Tensor | None = None, residual: bool = False, **options: Any
) -> Tensor | None:
    """A SwiGLU transition."""
    norm, gate, value, out = parts_of(module)
    weights = SwigluWeights(norm.weight, norm.bias, gate.weight, value.weight, out.weight)
    if not (mask_fits(mask, x) and swiglu_transition_fits(x, weights)):
        return None
    rows = None if mask is None else mask.expand(x.shape[:-1])
    return swiglu_transition(x, weights, mask=rows, residual=residual, eps=norm.eps)


for _arguments, _names in (
    (("x",), ("norm", "fc1", "fc2", "fc3")),
    (("x", "mask"), ("layer_norm", "swiglu.linear_a", "swiglu.linear_b", "linear_out")),
    (("x",), ("layernorm1", "linear_no_bias_a", "linear_no_bias_b", "linear_no_bias")),
):
    Form(
        run_swiglu,
        dict(zip(_names, (Norm("x"), Linear("n", "x"), Linear("n", "x"), Linear("x", "n")),
                 strict=True)),
        _arguments, ("NNx", "NN")[: len(_arguments)],
    )  # fmt: skip


def add_transition(module: Any, x: Tensor, mask: Tensor | None, *inputs: Tensor) -> Tensor:
    """x plus its transition, of any kind, with the further `inputs` of the module."""
    form = form_of(module)
    result = None
    if form is not None and form.run is not None:
        result = form.run(module, x, *inputs, mask=mask, residual=True)
    if result is None:
        result = x + (module(x, *inputs) if mask is None else module(x, *inputs, mask))
    return result  # type: ignore[no-any-return]

"""Inputs that no kernel takes get one typed error that names the input and what it must be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.cases import Draw, declared


def _with(operator: str, case: str, wrong: str, change: Callable[[Tensor], Tensor]) -> None:
    """Calls an operator as one of its cases does, but for one input or weight."""
    it = declared()[operator]
    made = it.cases[case](Draw(3, 5))

    def call(*args: Any, **options: Any) -> Tensor:
        given = inspect.signature(it.reference).bind(*args, **options).arguments
        if wrong in given:
            given[wrong] = change(given[wrong])
        else:
            part = change(getattr(given["weights"], wrong))
            given["weights"] = replace(given["weights"], **{wrong: part})
        return it.op(**given)

    made.call(call)(*made.tensors.values())


@pytest.mark.parametrize(
    ("operator", "case", "wrong"),
    [
        ("adaptive_norm", "plain", "gate_bias"), ("attention", "plain", "k"),
        ("attention", "of a bias", "bias"), ("attention", "of a mask", "mask"),
        ("conditioned_attention", "plain", "bias"), ("conditioned_transition", "of a mask", "last"),
        ("gated_attention", "plain", "q"), ("gated_attention", "of a bias", "bias"),
        ("gated_attention", "of a bias", "mask"), ("gated_attention", "starting node", "drop_mask"),
        ("layer_norm", "plain", "bias"), ("layer_norm", "plain", "weight"),
        ("outer_product_mean", "plain", "mask"), ("outer_product_mean", "residual", "z"),
        ("softmax", "of a bias", "bias"), ("softmax", "of both", "mask"),
        ("swiglu", "plain", "value"), ("transition", "of a mask", "mask"),
        ("transition", "plain", "w1"), ("triangle_multiplication", "outgoing", "mask"),
        ("weighted_average", "plain", "shares"),
    ],
)  # fmt: skip
def test_a_wrong_shape_is_named(operator: str, case: str, wrong: str) -> None:
    shapes: list[str] = []

    def cut(right: Tensor) -> Tensor:
        shapes.extend(", ".join(map(str, t.shape)) for t in (right[..., :-1], right))
        return right[..., :-1]

    with pytest.raises(UnsupportedShape) as refused:
        _with(operator, case, wrong, cut)
    assert f"{wrong} is [{shapes[0]}]" in str(refused.value)
    assert f"must be [{shapes[1]}]" in str(refused.value)


def test_pairs_that_are_no_square_are_named() -> None:
    with pytest.raises(UnsupportedShape, match=r"z is \[2, 5, 4, 32\].*\[2, 4, 4, 32\]"):
        _with("triangle_multiplication", "plain", "z", lambda z: z[:, :, :-1])


@pytest.mark.parametrize(
    ("operator", "first"), [("attention", "q"), ("gated_attention", "x"), ("layer_norm", "x")]
)
def test_whole_numbers_are_refused(operator: str, first: str) -> None:
    with pytest.raises(UnsupportedShape, match="float64, not int32: convert"):
        _with(operator, "plain", first, lambda x: x.int())


@pytest.mark.parametrize(
    ("operator", "case", "other"),
    [
        ("attention", "of a mask", "mask"), ("gated_attention", "of a bias", "mask"),
        ("layer_norm", "plain", "weight"), ("outer_product_mean", "plain", "mask"),
        ("softmax", "of both", "mask"), ("transition", "of a mask", "mask"),
        ("triangle_multiplication", "outgoing", "mask"),
    ],
)  # fmt: skip
def test_inputs_on_two_devices_are_one_error(operator: str, case: str, other: str) -> None:
    name = declared()[operator].reference.__name__
    with pytest.raises(KernelError, match=rf"{name}.*cpu and meta: move them to one"):
        _with(operator, case, other, lambda t: t.to("meta"))

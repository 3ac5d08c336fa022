"""Inputs that no kernel takes get one typed error that names the input and what it must be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels import layer_norm, masked_softmax
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.transition.op import transition
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights

C, H, R = 16, 2, 5


def _z(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def _attention(**options: Tensor) -> Tensor:
    q = torch.zeros(H * 8, C)
    weights = AttentionWeights(_z(C), _z(C), q, q, q, q, _z(H * 8), _z(C, H * 8), _z(C))
    return gated_attention(options.pop("x", _z(1, 3, R, C)), weights, H, **options)  # type: ignore[arg-type]


def _transition(x: Tensor, **options: Tensor) -> Tensor:
    weights = TransitionWeights(_z(C), _z(C), _z(32, C), _z(32), _z(C, 32), _z(C))
    return transition(x, weights, **options)  # type: ignore[arg-type]


def _triangle(z: Tensor, **options: Tensor) -> Tensor:
    square = [_z(C, C) if n % 2 == 0 else _z(C) for n in range(8)]
    weights = TriangleWeights(_z(C), _z(C), *square, _z(C), _z(C), _z(C, C), _z(C), _z(C, C), _z(C))
    return triangle_multiplication(z, weights, outgoing=True, **options)  # type: ignore[arg-type]


def _outer(mask: Tensor, z: Tensor | None = None) -> Tensor:
    weights = OuterWeights(_z(C), _z(C), _z(8, C), _z(8), _z(8, C), _z(8), _z(C, 64), _z(C))
    return outer_product_mean(_z(1, 3, R, C), weights, mask, z=z)


qkv = torch.zeros(1, 3, R, H, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer_norm(_z(3, C), _z(C + 1), _z(C)), r"weight is \[17\].*must be \[16\]"),
        (lambda: layer_norm(_z(3, C), _z(C), _z(1)), r"bias is \[1\]"),
        (lambda: layer_norm(_z(3, C).long(), _z(C), _z(C)), "float64, not int64: convert"),
        (lambda: masked_softmax(_z(1, 3, H, R, R), _z(1, 3, R + 1)), r"mask is \[1, 3, 6\]"),
        (lambda: masked_softmax(_z(1, 3, H, R, R), None, _z(1, 1, R, R)), "bias is"),
        (lambda: biased_attention(qkv, qkv[..., :4], qkv), r"k is \[1, 3, 5, 2, 4\]"),
        (lambda: biased_attention(qkv, qkv, qkv, _z(1, H, R, 4)), r"must be \[1, 2, 5, 5\]"),
        (lambda: biased_attention(qkv, qkv, qkv, None, _z(3, 1, R)), "mask is"),
        (lambda: biased_attention(qkv.int(), qkv, qkv), "not int32"),
        (lambda: _attention(x=_z(1, 3, R, C + 1)), r"weights.q is \[16, 16\].*\[16, 17\]"),
        (lambda: _attention(bias=_z(1, H, 3, 3)), r"bias is .*\[1, 2, 5, 5\]"),
        (lambda: _attention(mask=_z(1, R, 3)), r"mask is \[1, 5, 3\].*\[1, 3, 5\]"),
        (lambda: _attention(drop_mask=_z(1, 3, C)), r"drop_mask .*\[1, 5, 16\]"),
        (lambda: _attention(x=_z(1, 3, R, C).int()), "float64, not int32"),
        (lambda: _transition(_z(3, 8)), r"weights.w1 is \[32, 16\].*\[32, 8\]"),
        (lambda: _transition(_z(3, C), mask=_z(4)), r"mask is \[4\].*\[3\]"),
        (lambda: _triangle(_z(1, R, 4, C)), r"z is \[1, 5, 4, 16\].*\[1, 4, 4, 16\]"),
        (lambda: _triangle(_z(1, R, R, C), mask=_z(R, R)), r"mask is \[5, 5\]"),
        (lambda: _outer(_z(1, R, 3)), r"mask is \[1, 5, 3\].*\[1, 3, 5\]"),
        (lambda: _outer(_z(1, 3, R), _z(1, 3, R, C)), r"z is .*\[1, 5, 5, 16\]"),
    ],
)
def test_a_wrong_shape_or_type_is_named(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(UnsupportedShape, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (lambda other: _attention(mask=other), "gated_attention"),
        (lambda other: _transition(_z(3, R, C), mask=other), "transition"),
        (lambda other: _triangle(_z(3, R, R, C), mask=torch.stack([other] * R, 1)), "triangle"),
        (lambda other: _outer(other), "outer_product_mean"),
        (lambda other: biased_attention(qkv, qkv, qkv, None, other), "biased_attention"),
        (lambda other: masked_softmax(_z(1, 3, H, R, R), other), "masked_softmax"),
        (lambda other: layer_norm(_z(3, C), other.new_zeros(C), _z(C)), "layer_norm"),
    ],
)
def test_inputs_on_two_devices_are_one_error(call: Callable[[Tensor], Tensor], op: str) -> None:
    other = torch.zeros(1, 3, R, device="meta")
    with pytest.raises(KernelError, match=rf"{op}.*cpu and meta: move them to one"):
        call(other[0] if op in ("transition", "triangle") else other)

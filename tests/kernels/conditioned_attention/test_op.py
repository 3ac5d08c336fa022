"""Attention of tokens against its reference, with and without s, in both types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.errors import UnsupportedShape
from evofeed.kernels import reference
from evofeed.kernels.ops.conditioned_attention import op as room
from evofeed.kernels.ops.conditioned_attention.op import (
    ConditionedAttentionWeights,
    conditioned_attention,
    conditioned_attention_fits,
)

pytestmark = pytest.mark.gpu

B, R, N = 2, 3, 17
Op = Callable[..., Tensor]


def plain_weights(C: int, width: int) -> list[Tensor]:
    """Norm, then q and its bias, k, v, g, o, and the norm's bias."""
    sides = [(C,), (width, C), (width,), *[(width, C)] * 3, (C, width), (C,)]
    made = [torch.randn(*shape) * shape[-1] ** -0.5 for shape in sides]
    return [1 + made[0], *made[1:]]


def conditioned_weights(C: int, K: int, width: int) -> list[Tensor]:
    """As above with a scale of s and without the norm's bias, then the layers of s."""
    sides = [(C, K), (C,), (C, K), (C, K), (C,)]
    of_s = [torch.randn(*shape) * shape[-1] ** -0.5 for shape in sides]
    return [1 + 0.3 * torch.randn(K), *plain_weights(C, width)[1:-1], *of_s]


def case(C: int, K: int | None, D: int, H: int) -> tuple[list[Tensor], Callable[[Op], Op]]:
    """a, the bias, s (with K) and the weights, and a call of them."""
    a, bias = torch.randn(B, R, N, C), torch.randn(B, H, N, N)
    if K is None:
        given = [a, bias, *plain_weights(C, H * D)]
    else:
        given = [a, bias, torch.randn(B, R, N, K), *conditioned_weights(C, K, H * D)]

    def call(op: Op, mask: Tensor | None = None) -> Op:
        def run(a: Tensor, bias: Tensor, *rest: Tensor) -> Tensor:
            s, rest = (None, rest) if K is None else (rest[0], rest[1:])
            last = rest[7:] if K is None else (None, *rest[7:])
            weights = ConditionedAttentionWeights(*rest[:7], *([rest[7]] if K is None else last))
            assert conditioned_attention_fits(a, s, weights, H) or a.dtype is torch.float64
            return op(a, s, weights, H, bias=bias, mask=mask, residual=mask is not None)

        return run

    return given, call


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["float32", "16 bits"])
# No parameter has fewer than 24 numbers: of 16 in 16 bits chance alone makes the error 1.5 times.
@pytest.mark.parametrize(("C", "K", "D", "H"), [(32, 24, 48, 2), (48, None, 24, 2), (48, 40, 8, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_as_exact_as_pytorch(
    C: int, K: int | None, D: int, H: int, masked: bool, dtype: torch.dtype | None,
    half: torch.dtype, device: str, three_way: Callable[..., None],
) -> None:  # fmt: skip
    given, call = case(C, K, D, H)
    mask = (torch.rand(B, R, N, device=device) > 0.3).float() if masked else None
    tensors = [t.to(device, dtype or half) for t in given]
    three_way(
        call(conditioned_attention, mask), call(reference.conditioned_attention, mask), tensors,
        range(len(tensors)),
    )  # fmt: skip


def test_a_wrong_shape_is_named(device: str) -> None:
    w = ConditionedAttentionWeights(*(t.to(device) for t in plain_weights(16, 16)))
    a, bias = torch.zeros(1, 2, 4, 16, device=device), torch.zeros(1, 2, 4, 5, device=device)
    with pytest.raises(UnsupportedShape, match=r"bias is \[1, 2, 4, 5\].*\[1, 2, 4, 4\]"):
        conditioned_attention(a, None, w, 2, bias=bias)


def test_under_autocast_it_works_in_autocasts_type(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, call = case(48, None, 24, 2)
    given, taken = [t.to(device) for t in given], []
    original = room._ConditionedAttention.apply

    def noted(options: tuple[object, ...], *tensors: Tensor | None) -> Tensor:
        taken.append(options[-1])
        return original(options, *tensors)

    monkeypatch.setattr(room._ConditionedAttention, "apply", noted)
    with torch.autocast(device, torch.float16):
        out = call(conditioned_attention)(*given)
    assert taken == [torch.float16]
    assert out.dtype is torch.float32

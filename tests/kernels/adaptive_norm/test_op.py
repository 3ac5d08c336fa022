"""The adaptive norm against its reference, in both types, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.errors import UnsupportedShape
from evofeed.kernels import reference
from evofeed.kernels.ops.adaptive_norm.op import (
    AdaptiveWeights,
    adaptive_norm,
    adaptive_norm_fits,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["float32", "16 bits"])
@pytest.mark.parametrize(("C", "K"), [(16, 24), (48, 16), (768, 384)])
def test_it_is_as_exact_as_pytorch(
    C: int, K: int, dtype: torch.dtype | None, half: torch.dtype, device: str,
    three_way: Callable[..., None],
) -> None:  # fmt: skip
    a, s = torch.randn(2, 13, C), torch.randn(2, 13, K)
    weights = [1 + 0.3 * torch.randn(K), torch.randn(C, K) / K**0.5, 0.3 * torch.randn(C)]
    tensors = [t.to(device, dtype or half) for t in (a, s, *weights, torch.randn(C, K) / K**0.5)]
    assert adaptive_norm_fits(*tensors[:2], AdaptiveWeights(*tensors[2:]))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda a, s, *w: op(a, s, AdaptiveWeights(*w))

    three_way(call(adaptive_norm), call(reference.adaptive_norm), tensors, range(6))


def test_one_s_for_several_rows_is_computed_by_pytorch(device: str) -> None:
    a, s = torch.randn(3, 5, 16, device=device), torch.randn(1, 5, 16, device=device)
    w = AdaptiveWeights(*(torch.randn(n, device=device) for n in (16, (16, 16), 16, (16, 16))))
    assert not adaptive_norm_fits(a, s, w)
    assert torch.equal(adaptive_norm(a, s, w), reference.adaptive_norm(a, s, w))


def test_a_wrong_shape_is_named(device: str) -> None:
    x, weight = torch.zeros(2, 16, device=device), torch.zeros(16, 16, device=device)
    with pytest.raises(UnsupportedShape, match=r"gate_bias is \[2\].*\[16\]"):
        adaptive_norm(x, x, AdaptiveWeights(x[0], weight, x[:, 0], weight))

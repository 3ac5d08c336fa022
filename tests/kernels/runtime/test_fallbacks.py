"""Every op gives the plain version's result where no kernel runs: same contract for all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.runtime.checks import Made, falls_back_to


def test_what_falls_back_is_passed_on_whole() -> None:
    """No option is lost; the result has the type of the input, or of the one that is named."""

    def plain(x: Tensor, scale: float, *, to: Tensor | None = None) -> Tensor:
        return scale * x.double() + (0 if to is None else to)

    @falls_back_to(plain, like="to")
    def op(x: Tensor, scale: float, *, to: Tensor | None = None) -> Made:
        return x if scale == 0.0 else None

    x, to = torch.ones(2), torch.ones(2, dtype=torch.float16)
    assert op(x, 0.0) is x
    assert torch.equal(op(x, 3.0), 3 * x)
    assert torch.equal(op(x=x, scale=3.0, to=to), torch.full((2,), 4.0, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_of_another_type_are_cast_and_the_result_has_the_inputs(
    dtype: torch.dtype,
) -> None:
    C, K = 24, 12  # no power of two: no kernel takes them
    torch.manual_seed(0)
    q = [torch.randn(K, C) for _ in range(4)]
    weights = AttentionWeights(
        torch.ones(C), torch.zeros(C), *q, torch.zeros(K), torch.randn(C, K), torch.zeros(C)
    )
    x = torch.randn(1, 2, 3, C, dtype=dtype)
    out = gated_attention(x, weights, 2)
    assert out.dtype is dtype and torch.isfinite(out).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert gated_attention(x.float(), weights, 2).dtype is torch.float32

"""The SwiGLU transition against its reference, in both types, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.errors import UnsupportedShape
from evofeed.kernels import reference
from evofeed.kernels.ops.swiglu.op import SwigluWeights, swiglu_transition

pytestmark = pytest.mark.gpu

ALL = "mask residual"


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["float32", "16 bits"])
@pytest.mark.parametrize(
    ("C", "n", "options"),
    [(16, 2, ""), (16, 4, "mask"), (24, 2, "residual"), (24, 4, ALL), (128, 4, ALL), (256, 2, ALL)],
)
def test_it_is_as_exact_as_pytorch(
    C: int, n: int, options: str, dtype: torch.dtype | None, half: torch.dtype, device: str,
    three_way: Callable[..., None],
) -> None:  # fmt: skip
    x = torch.randn(3, 13, C)
    weights = [1 + 0.3 * torch.randn(C), 0.3 * torch.randn(C)]
    weights += [torch.randn(n * C, C) / C**0.5, torch.randn(n * C, C) / C**0.5]
    weights += [torch.randn(C, n * C) / (n * C) ** 0.5]
    mask = (torch.rand(3, 13) > 0.3).float()
    tensors = [t.to(device, dtype or half) for t in (x, *weights, mask)]

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, *w: op(
            x, SwigluWeights(*w[:5]), mask=w[5] if "mask" in options else None,
            residual="residual" in options,
        )  # fmt: skip

    three_way(
        call(swiglu_transition), call(reference.swiglu_transition), tensors, [0, 1, 2, 3, 4, 5]
    )


def test_a_wrong_shape_is_named(device: str) -> None:
    x = torch.zeros(2, 16, device=device)
    norm, narrow = torch.zeros(16, device=device), torch.zeros(32, 16, device=device)
    weights = SwigluWeights(norm, norm, narrow, narrow[:16], narrow.t())
    with pytest.raises(UnsupportedShape, match=r"weights.value is \[16, 16\].*\[32, 16\]"):
        swiglu_transition(x, weights)

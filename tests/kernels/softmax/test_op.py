from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from evofeed.kernels import masked_softmax, reference

pytestmark = pytest.mark.gpu

Check = Callable[..., None]


@pytest.mark.parametrize("keys", [5, 33, 60])
@pytest.mark.parametrize("rows", [1, 7])
def test_softmax_with_mask_and_bias(keys: int, rows: int, device: str, three_way: Check) -> None:
    x = torch.randn(2, rows, 2, 6, keys, device=device)
    bias = torch.randn(2, 2, 6, keys, device=device)
    mask = (torch.rand(2, rows, keys, device=device) > 0.3).float()
    mask[1, 0] = 0.0
    three_way(
        lambda x, b: masked_softmax(x, mask, b), lambda x, b: reference.masked_softmax(x, mask, b),
        [x, bias], [0, 1],
    )  # fmt: skip


def test_half_precision_without_mask(half: torch.dtype, device: str, three_way: Check) -> None:
    x = torch.randn(1, 3, 2, 9, 40, device=device).to(half)
    bias = torch.randn(1, 2, 9, 40, device=device).to(half)
    three_way(
        lambda x, b: masked_softmax(x, None, b), lambda x, b: reference.masked_softmax(x, None, b),
        [x, bias], [0, 1],
    )  # fmt: skip

"""The adaptive norm against its reference, in both types, forward and backward."""

from __future__ import annotations

import pytest
import torch

from evofeed.kernels import reference
from evofeed.kernels.ops.adaptive_norm.op import adaptive_norm, adaptive_norm_fits
from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights

pytestmark = pytest.mark.gpu


def test_one_s_for_several_rows_is_computed_by_pytorch(device: str) -> None:
    a, s = torch.randn(3, 5, 16, device=device), torch.randn(1, 5, 16, device=device)
    w = AdaptiveWeights(*(torch.randn(n, device=device) for n in (16, (16, 16), 16, (16, 16))))
    assert not adaptive_norm_fits(a, s, w)
    assert torch.equal(adaptive_norm(a, s, w), reference.adaptive_norm(a, s, w))

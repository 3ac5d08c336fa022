"""Attention of tokens, beside what `cases.py` declares of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.kernels.ops.conditioned_attention import op as room
from evofeed.kernels.ops.conditioned_attention.cases import OPERATOR
from evofeed.kernels.runtime.cases import Draw

pytestmark = pytest.mark.gpu


def test_under_autocast_it_works_in_autocasts_type(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, taken = OPERATOR.cases["plain"](Draw(3, 17, device)), []
    original = room._ConditionedAttention.apply

    def noted(options: tuple[object, ...], *tensors: Tensor | None) -> Tensor:
        taken.append(options[-1])
        return original(options, *tensors)

    monkeypatch.setattr(room._ConditionedAttention, "apply", noted)
    with torch.autocast(device, torch.float16):
        out = made.call(OPERATOR.op)(*made.tensors.values())
    assert taken == [torch.float16]
    assert out.dtype is torch.float32

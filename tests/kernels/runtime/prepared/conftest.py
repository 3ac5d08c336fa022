"""Calls are traced soon; a kernel that is launched by address."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.runtime.prepared.common import (
    ADD_ONE,
    AddOne,
)
from torch import Tensor

from evofeed.kernels.runtime import launching, prepared


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of a kind is traced already."""
    monkeypatch.setattr(prepared, "OFTEN", 1)


@pytest.fixture
def by_address(monkeypatch: pytest.MonkeyPatch) -> AddOne:
    """A kernel that is launched as on a GPU; CPU tensors pass for those of device 0."""
    monkeypatch.setattr(launching, "INTERPRETER", False)
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)
    return ADD_ONE

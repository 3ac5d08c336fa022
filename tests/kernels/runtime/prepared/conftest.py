"""Calls are traced soon; a kernel that is launched by address."""

from __future__ import annotations

import pytest

from evofeed.kernels.runtime import prepared


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of a kind is traced already."""
    monkeypatch.setattr(prepared, "OFTEN", 1)

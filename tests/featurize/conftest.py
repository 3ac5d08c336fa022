"""What tests of featurize share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.inside import units_inside


@pytest.fixture
def inside() -> Iterator[None]:
    """Jobs and searches of a test start no worker: their units run in this process."""
    with units_inside():
        yield

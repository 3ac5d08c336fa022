"""Fixtures shared by tests of the loader."""

from __future__ import annotations

import pytest
from tests.loader.records import small_dataset
from tests.loader.streams import open_loader, sample_digests

from evofeed.store import Dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Twelve small chains; a test file may override it."""
    return small_dataset(tmp_path_factory.mktemp("chains") / "d")


@pytest.fixture(scope="module")
def reference(dataset: Dataset) -> list[str]:
    """Digests of the samples of the file's `dataset`, loaded without faults."""
    with open_loader(dataset) as loader:
        return sample_digests(loader)

"""A storage with injected faults: reads that are slow, wait, or fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.store.storage import LocalStorage

Before = Callable[[str, int, int], None]


class Watched(LocalStorage):
    """A local folder; `before` gets the key, offset and number of every read and may raise."""

    def __init__(self, root: str, before: Before) -> None:
        super().__init__(root)
        self.before = before
        self._numbers = itertools.count(1)  # threads that count together must not lose one

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        self.before(key, offset, next(self._numbers))
        super().read_into(key, offset, out)


def watched(dataset: Dataset, before: Before) -> Dataset:
    """The dataset behind a storage with faults."""
    storage = Watched(dataset.uri, before)
    return Dataset(storage, dataset.digest, dataset.manifest, dataset.index)


def read_of(dataset: Dataset, row: int) -> tuple[str, int]:
    """Key and offset of the loader's read of a chain."""
    loader = FeatureLoader(dataset, LoaderConfig(), device="cpu", reader="thread")
    location = loader.planner.catalogs[0].location(row)
    return location.key, location.offset + location.starts[0]

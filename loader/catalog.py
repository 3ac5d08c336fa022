"""The datasets a loader draws from, as plain arrays: what to read for each chain, and where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import below
from evofeed.loader.order import accept_probability, column, eligible_rows
from evofeed.loader.views.weights import DatapointDraw
from evofeed.store.inner import SpanTable


class ChainPlace(NamedTuple):
    """Where a chain is: everything a reader needs, so that it opens no index."""

    dataset: int
    chain_id: str
    key: str
    offset: int
    starts: tuple[int, ...]
    """Start of each column within the chain's bytes, and the end of the last."""
    sizes: tuple[int, int, int, int]
    """L, N, K, T as the index has them; the bytes must agree."""


class ChainCatalog:
    """One dataset's chains that may be drawn."""

    probability: np.ndarray | DatapointDraw | None
    """Chances of acceptance of the rows that may be drawn; None: all are 1. Entries are drawn."""

    def __init__(self, index: pa.Table, number: int, config: LoaderConfig, uri: str = "") -> None:
        self.index, self.number, self.uri, self.config = index, number, uri, config
        self.spans = SpanTable(index)
        self.rows = eligible_rows(index, config)
        if config.shuffle_window:  # neighbours are those that are side by side in a shard
            of = self.spans.offset[self.rows], self.spans.shard[self.rows]
            self.rows = self.rows[np.lexsort(of)]
        self.probability = accept_probability(index)[self.rows] if config.weighted else None
        self.cost = column(index, "cost")
        self.resolution = column(index, "resolution")
        self.is_distillation = column(index, "is_distillation")

    @property
    def most_chains(self) -> int:
        """Chains of the largest sample that may be drawn."""
        return 1

    def __len__(self) -> int:
        return len(self.rows)

    def other(self, key: int, attempt: int) -> int:
        """Row of a chain in place of one that cannot be read."""
        return int(self.rows[below(key, len(self), attempt)])

    def chain_ids(self) -> list[str]:
        """Of the eligible chains."""
        ids: list[str] = self.index["chain_id"].take(self.rows).to_pylist()
        return ids

    def chain_id(self, row: int) -> str:
        """Name of the chain of a row."""
        return self.spans.chain_id(row)

    def sizes(self, row: int) -> tuple[int, int, int, int]:
        """L, N, K, T of the chain of an index row."""
        length, rows, deletions, templates = self.spans.dims[row].tolist()
        return length, rows, deletions, templates

    def place(self, row: int) -> ChainPlace:
        """Where the chain of an index row is."""
        span = self.spans.span(row)
        return ChainPlace(
            self.number, span.record_id, span.key, span.offset, span.starts, self.sizes(row)
        )

    def largest(self) -> int:
        """Row of the eligible chain with the most bytes, packed and unpacked."""
        length, rows, _, templates = self.spans.dims[self.rows].T.astype(np.int64)
        unpacked = length * (rows + 485 * (1 + templates))  # what `slot_nbytes` counts, nearly
        return int(self.rows[np.argmax(self.spans.nbytes[self.rows] + unpacked)])

"""Catalogs of eligible chains: index rows, sampling probabilities, and locations in the store."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import below
from evofeed.loader.order import accept_probability, column, eligible_rows
from evofeed.loader.views.weights import DatapointDraw
from evofeed.store.inner import SpanTable


class ChainLocation(NamedTuple):
    """Location of a chain in the store, with all that a reader needs of the index."""

    dataset: int
    chain_id: str
    key: str
    offset: int
    starts: tuple[int, ...]
    """Start of each column within the chain's bytes, and the end of the last."""
    sizes: tuple[int, int, int, int]
    """L, N, K, T in the index; those of the record must be equal."""


class ChainCatalog:
    """The eligible chains of one dataset."""

    probability: np.ndarray | DatapointDraw | None
    """Probabilities of accepting the eligible rows (None: all 1), or the draw of an entry."""

    def __init__(self, index: pa.Table, number: int, config: LoaderConfig, uri: str = "") -> None:
        self.index, self.number, self.uri, self.config = index, number, uri, config
        self.spans = SpanTable(index)
        self.rows = eligible_rows(index, config)
        if config.shuffle_window:  # windows are of neighbours in a shard
            keys = self.spans.offset[self.rows], self.spans.shard[self.rows]
            self.rows = self.rows[np.lexsort(keys)]
        self.probability = accept_probability(index)[self.rows] if config.weighted else None
        self.cost = column(index, "cost")
        self.resolution = column(index, "resolution")
        self.is_distillation = column(index, "is_distillation")

    @property
    def most_chains(self) -> int:
        """Number of chains of the largest eligible sample."""
        return 1

    def __len__(self) -> int:
        return len(self.rows)

    def substitute(self, key: int, attempt: int) -> int:
        """Row of a chain that replaces an unreadable one."""
        return int(self.rows[below(key, len(self), attempt)])

    def chain_ids(self) -> list[str]:
        """Ids of the eligible chains."""
        ids: list[str] = self.index["chain_id"].take(self.rows).to_pylist()
        return ids

    def chain_id(self, row: int) -> str:
        """Id of the chain of an index row."""
        return self.spans.chain_id(row)

    def sizes(self, row: int) -> tuple[int, int, int, int]:
        """L, N, K, T of the chain of an index row."""
        length, rows, deletions, templates = self.spans.dims[row].tolist()
        return length, rows, deletions, templates

    def location(self, row: int) -> ChainLocation:
        """The location of the chain of an index row."""
        span = self.spans.span(row)
        return ChainLocation(
            self.number, span.record_id, span.key, span.offset, span.starts, self.sizes(row)
        )

    def largest(self) -> int:
        """Row of the eligible chain with the most bytes, packed and unpacked."""
        length, rows, _, templates = self.spans.dims[self.rows].T.astype(np.int64)
        unpacked = length * (rows + 485 * (1 + templates))  # approximates `slot_nbytes`
        return int(self.rows[np.argmax(self.spans.nbytes[self.rows] + unpacked)])

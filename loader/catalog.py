"""The datasets a loader draws from, as plain arrays: what to read for each chain, and where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import below
from evofeed.loader.order import accept_probability, column, eligible_rows, whole_column
from evofeed.loader.views.weights import DatapointDraw
from evofeed.store.inner import COLUMNS, shard_key


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


class Places:
    """Where the chains of an index are, by row."""

    def __init__(self, index: pa.Table, number: int) -> None:
        self.number = number
        # Held, and not looked up by name each time: that costs more than the rest of `place`.
        self._chain_id, self._shard = index["chain_id"], index["shard"]
        self._offset = column(index, "offset")
        self._sizes = [
            column(index, name)
            for name in ("num_res", "num_alignments", "num_deletions", "num_templates")
        ]
        starts = whole_column(index, "column_offsets").flatten().to_numpy(zero_copy_only=False)
        self._starts = np.asarray(starts).reshape(-1, len(COLUMNS) + 1)

    def sizes(self, row: int) -> tuple[int, int, int, int]:
        """L, N, K, T of the chain of an index row."""
        length, rows, deletions, templates = (int(size[row]) for size in self._sizes)
        return length, rows, deletions, templates

    def chain_id(self, row: int) -> str:
        """Name of the chain or complex of a row."""
        name: str = self._chain_id[row].as_py()
        return name

    def place(self, row: int) -> ChainPlace:
        """Where the chain of an index row is."""
        return ChainPlace(
            dataset=self.number,
            chain_id=self.chain_id(row),
            key=shard_key(self._shard[row].as_py()),
            offset=int(self._offset[row]),
            starts=tuple(self._starts[row].tolist()),
            sizes=self.sizes(row),
        )


class ChainCatalog(Places):
    """One dataset's chains that may be drawn."""

    probability: np.ndarray | DatapointDraw | None
    """Chances of acceptance of the rows that may be drawn; None: all are 1. Entries are drawn."""

    def __init__(self, index: pa.Table, number: int, config: LoaderConfig, uri: str = "") -> None:
        super().__init__(index, number)
        self.index, self.uri = index, uri
        self.rows = eligible_rows(index, config)
        if config.shuffle_window:  # neighbours are those that are side by side in a shard
            shard = whole_column(index, "shard").indices.to_numpy()[self.rows]
            self.rows = self.rows[np.lexsort((column(index, "offset")[self.rows], shard))]
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
        ids: list[str] = self._chain_id.take(self.rows).to_pylist()
        return ids

    def largest(self) -> int:
        """Row of the eligible chain with the most bytes, packed and unpacked."""
        length, rows, _, templates = (size[self.rows].astype(np.int64) for size in self._sizes)
        unpacked = length * (rows + 485 * (1 + templates))  # what `slot_nbytes` counts, nearly
        return int(self.rows[np.argmax(column(self.index, "nbytes")[self.rows] + unpacked)])

"""Catalog of eligible datapoints of entries: their chains and interfaces."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from evofeed.base.errors import LoaderError
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import EntryConfig, LoaderConfig
from evofeed.loader.counter_rng import below
from evofeed.loader.order import arrow_column, column, filter_rows
from evofeed.loader.views.weights import DatapointDraw, cluster_sizes, cluster_weights, pair_weights
from evofeed.store import Entries
from evofeed.store.inner import RecordSpan

_DATES: Final = {"openfold3": "earliest_date"}
"""Date column that a project filters by, if not `release_date`."""
_NMR: Final = ("SOLUTION NMR", "SOLID-STATE NMR")


class EntryLocation(NamedTuple):
    """Location of an entry and its alignments in the store; a reader opens no table."""

    dataset: int
    chain_id: str
    """The entry id."""
    key: str
    offset: int
    """Of its record, for a read that probes whether the storage answers."""
    span: RecordSpan
    alignments: tuple[RecordSpan, ...]
    molecules: RecordSpan
    components: RecordSpan
    datapoint: tuple[int, ...]
    """A chain, or the two chains of an interface."""
    nbytes: int
    """Bytes of a slot."""


class EntryCatalog(ChainCatalog):
    """The eligible chains and interfaces of one dataset's entries."""

    def __init__(self, entries: Entries, number: int, config: LoaderConfig) -> None:
        assert config.entries is not None
        rules = config.entries
        self.number, self.uri, self._entries = number, entries.dataset.uri, entries
        self._slot_nbytes = rules.slot_nbytes
        self.index = table = entries.datapoints
        self._entry = column(table, "entry")
        self._ids = entries.table["entry_id"].to_pylist()
        of_project = np.isin(self._entry, eligible_entries(entries, config))
        self.rows = np.flatnonzero(of_project & (column(table, "project") == rules.project))
        if not len(self.rows):
            raise LoaderError(
                f"nothing of {len(self._ids)} entries may be drawn for {rules.project}",
                path=self.uri,
            )
        self._chains = np.stack([column(table, "chain_a"), column(table, "chain_b")], 1)
        self.probability = self._draw = DatapointDraw(self._weights(rules))
        self.cost = column(entries.table, f"tokens_{rules.project}")[self._entry]
        self._molecules = entries.span("molecules", rules.project)
        self._components = entries.span("components", "components")
        available = set(entries.names("alignment"))
        self._alignments = [
            tuple(name for name in names if name in available)
            for names in entries.table["alignments"].to_pylist()
        ]

    def _weights(self, rules: EntryConfig) -> np.ndarray:
        table = self.index.take(self.rows)
        kinds = np.stack([column(table, "kind_a"), column(table, "kind_b")], 1).astype(np.int64)
        names = (table[name].to_pylist() for name in ("cluster_a", "cluster_b"))
        pairs = zip(*names, strict=True)
        keys = np.array(["|".join(sorted(pair)) if pair[1] else pair[0] for pair in pairs])
        prefix = np.where(kinds[:, 1] < 0, "1:", "2:")  # of a chain or of an interface
        _, cluster = np.unique(np.char.add(prefix, keys), return_inverse=True)
        if rules.project != "protenix":
            return cluster_weights(kinds, cluster_sizes(cluster), rules.weights)
        entities = np.sort(np.stack([column(table, "entity_a"), column(table, "entity_b")], 1), 1)
        entry_pairs = np.column_stack([self._entry[self.rows], entities])
        _, pair = np.unique(entry_pairs, axis=0, return_inverse=True)
        return pair_weights(kinds, cluster, pair.reshape(-1), rules.weights)

    def chain_ids(self) -> list[str]:
        """Ids of the eligible entries."""
        return [self._ids[row] for row in np.unique(self._entry[self.rows])]

    def largest(self) -> int:
        """Row of any datapoint: all slots have one size."""
        return int(self.rows[0])

    def substitute(self, key: int, attempt: int) -> int:
        """Row of a datapoint, drawn by weight, that replaces an unreadable one."""
        drawn = self._draw.rows(key, attempt, below(key, 1 << 20, attempt), 1)
        return int(self.rows[drawn[0]])

    def location(self, row: int) -> EntryLocation:  # type: ignore[override]
        """The location of the entry of a datapoint."""
        number = int(self._entry[row])
        span = self._entries.span("entry", self._ids[number])
        names = self._alignments[number]
        return EntryLocation(
            dataset=self.number,
            chain_id=span.record_id,
            key=span.key,
            offset=span.offset,
            span=span,
            alignments=tuple(self._entries.span("alignment", name) for name in names),
            molecules=self._molecules,
            components=self._components,
            datapoint=tuple(chain for chain in self._chains[row].tolist() if chain >= 0),
            nbytes=self._slot_nbytes,
        )


def eligible_entries(entries: Entries, config: LoaderConfig) -> np.ndarray:
    """Rows of the entry table that pass the filters, ascending.

    Raises:
        LoaderError: no entry passes; names the filters and their counts.
    """
    assert config.entries is not None
    rules, table, points = config.entries, entries.table, entries.datapoints
    resolution, tokens = column(table, "resolution"), column(table, f"tokens_{rules.project}")
    filters = {f"no sample for {rules.project}": tokens < 0}
    if rules.max_tokens is not None:
        filters[f"over {rules.max_tokens} tokens"] = tokens > rules.max_tokens
    if rules.resolution_required:
        methods = table["methods"].to_pylist()
        by_nmr = np.array([bool(names) and names[0] in _NMR for names in methods], bool)
        filters["no resolution"] = np.isnan(resolution) & ~by_nmr
    if len(points):
        of_project = column(points, "project") == rules.project
        chains = of_project & (column(points, "chain_b") < 0)
        counts = np.bincount(column(points, "entry")[chains], minlength=len(table))
        filters[f"over {rules.max_chains} chains"] = counts > rules.max_chains
    dates = arrow_column(table, _DATES.get(rules.project, "release_date"))
    dates = pc.if_else(pc.equal(dates, ""), arrow_column(table, "deposit_date"), dates)
    return filter_rows(table, "entry", filters, config, dates)

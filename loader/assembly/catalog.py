"""Catalogs of eligible complexes, and of single chains as complexes of one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import LoaderError
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.order import arrow_column, column, filter_rows
from evofeed.store import Assemblies
from evofeed.store.inner import AssemblySpan


class AssemblyLocation(NamedTuple):
    """Location of a complex in the store, and the bytes of a slot for it."""

    dataset: int
    chain_id: str
    """The assembly id."""
    key: str
    offset: int
    """Of its first chain, for a read that probes whether the storage answers."""
    span: AssemblySpan
    nbytes: int

    @classmethod
    def of(cls, dataset: int, span: AssemblySpan, nbytes: Any) -> AssemblyLocation:
        """The location of a complex of the dataset with this number."""
        first = span.chains[0]
        return cls(dataset, span.assembly_id, first.key, first.offset, span, int(nbytes))


class AssemblyCatalog(ChainCatalog):
    """The eligible complexes of one dataset."""

    def __init__(self, assemblies: Assemblies, number: int, config: LoaderConfig) -> None:
        dataset = assemblies.dataset
        self.number, self.uri, self.config = number, dataset.uri, config
        self.index, self._assemblies = assemblies.table, assemblies
        self.rows = eligible_assemblies(self.index, config)
        self.cost = column(self.index, "cost")
        num_res = column(self.index, "num_res").astype(np.int64)
        self._nbytes = packed_nbytes(num_res, column(self.index, "num_entities"), config)
        entities = arrow_column(self.index, "chain_ids")
        chains = _rows_in(entities.flatten(), dataset.index["chain_id"])
        members = assemblies.member_index["chain_id"]
        assembly_rows = _rows_in(arrow_column(self.index, "assembly_id"), members)
        if (chains < 0).any() or (assembly_rows < 0).any():
            raise LoaderError("its assemblies name chains that are not in it", path=self.uri)
        copies = arrow_column(self.index, "copies").flatten().to_numpy()
        cluster_size = column(dataset.index, "cluster_size")[chains].clip(min=1)
        weights, counts = (
            np.add.reduceat(values, entities.offsets.to_numpy()[:-1])
            for values in (copies / cluster_size, copies)
        )
        self.probability = (weights / np.maximum(counts, 1))[self.rows] if config.weighted else None

    @property
    def most_chains(self) -> int:
        """Number of chains of the largest eligible complex."""
        return int(column(self.index, "num_chains")[self.rows].max(initial=1))

    def chain_id(self, row: int) -> str:
        """The assembly id of a row of the table."""
        return str(self.index["assembly_id"][row].as_py())

    def chain_ids(self) -> list[str]:
        """Ids of the eligible complexes."""
        ids: list[str] = self.index["assembly_id"].take(self.rows).to_pylist()
        return ids

    def largest(self) -> int:
        """Row of the eligible complex with the largest slot."""
        return int(self.rows[np.argmax(self._nbytes[self.rows])])

    def location(self, row: int) -> AssemblyLocation:  # type: ignore[override]
        """The location of the complex of a row of the table."""
        span = self._assemblies.span(self.chain_id(row))
        return AssemblyLocation.of(self.number, span, self._nbytes[row])


class LoneChains(ChainCatalog):
    """Single chains, each a complex of one."""

    def largest(self) -> int:
        """Row of the longest eligible chain."""
        return int(self.rows[np.argmax(self.spans.dims[self.rows, 0])])

    def location(self, row: int) -> AssemblyLocation:  # type: ignore[override]
        """The location of the chain of an index row."""
        span = self.spans.span(row)
        nbytes = packed_nbytes(self.sizes(row)[0], 1, self.config)
        return AssemblyLocation.of(self.number, AssemblySpan(span.record_id, (span,)), nbytes)


def packed_nbytes(num_res: Any, num_entities: Any, config: LoaderConfig) -> Any:
    """Bytes of slots for complexes of these sizes; larger samples are sent without a slot."""
    rules = config.assemblies
    assert rules is not None
    rows = rules.msa_rows * num_entities + rules.paired_rows * (num_entities > 1)
    # Per residue: ids, atoms, and one letter a row, of which few have deletions.
    return 4096 + num_res * (64 + 485 * (1 + rules.max_templates) + rows + rows // 2)


def _rows_in(names: pa.Array, column: pa.ChunkedArray) -> np.ndarray:
    """Row of each name in a column, -1 if it is missing."""
    rows = pc.index_in(names, value_set=column.combine_chunks())
    return np.asarray(pc.fill_null(rows, -1).to_numpy(zero_copy_only=False))


def eligible_assemblies(table: pa.Table, config: LoaderConfig) -> np.ndarray:
    """Rows of the table that pass the filters, ascending.

    AlphaFold-Multimer's filters: complexes coarser than 9 ångström are excluded, and predicted
    ones of fewer than 200 residues.

    Raises:
        LoaderError: no complex passes; names the filters and their counts.
    """
    filters = {
        "predicted, and fewer than 200 residues": column(table, "is_distillation")
        & (column(table, "num_res") < 200),
    }
    return filter_rows(table, "assembly", filters, config)

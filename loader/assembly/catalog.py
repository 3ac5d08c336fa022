"""The complexes a loader draws from, and single chains as complexes of one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import LoaderError
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.order import column, let_through, whole_column
from evofeed.store import Assemblies
from evofeed.store.inner import AssemblySpan


class AssemblyPlace(NamedTuple):
    """Where a complex is, and the bytes that a slot for it should have."""

    dataset: int
    chain_id: str
    """The complex's own name."""
    key: str
    offset: int
    """Of its first chain: what a storage is asked for to see whether it answers."""
    span: AssemblySpan
    nbytes: int

    @classmethod
    def of(cls, dataset: int, span: AssemblySpan, nbytes: Any) -> AssemblyPlace:
        """Of a dataset's number and a complex of it."""
        first = span.chains[0]
        return cls(dataset, span.assembly_id, first.key, first.offset, span, int(nbytes))


class AssemblyCatalog(ChainCatalog):
    """The complexes of one dataset that may be drawn."""

    def __init__(self, assemblies: Assemblies, number: int, config: LoaderConfig) -> None:
        dataset = assemblies.dataset
        self.number, self.uri, self.config = number, dataset.uri, config
        self.index, self._assemblies = assemblies.table, assemblies
        self.rows = eligible_assemblies(self.index, config)
        self.cost = column(self.index, "cost")
        num_res = column(self.index, "num_res").astype(np.int64)
        self._nbytes = packed_nbytes(num_res, column(self.index, "num_entities"), config)
        entities = whole_column(self.index, "chain_ids")
        chains = _rows_in(entities.flatten(), dataset.index["chain_id"])
        members = assemblies.member_index["chain_id"]
        whole = _rows_in(whole_column(self.index, "assembly_id"), members)
        if (chains < 0).any() or (whole < 0).any():
            raise LoaderError("its assemblies name chains that are not in it", path=self.uri)
        copies = whole_column(self.index, "copies").flatten().to_numpy()
        alike = column(dataset.index, "cluster_size")[chains].clip(min=1)
        shares, counts = (
            np.add.reduceat(of_entity, entities.offsets.to_numpy()[:-1])
            for of_entity in (copies / alike, copies)
        )
        self.probability = (shares / np.maximum(counts, 1))[self.rows] if config.weighted else None

    @property
    def most_chains(self) -> int:
        """Chains of the largest eligible complex."""
        return int(column(self.index, "num_chains")[self.rows].max(initial=1))

    def chain_id(self, row: int) -> str:
        """Name of the complex of a row of the table."""
        return str(self.index["assembly_id"][row].as_py())

    def chain_ids(self) -> list[str]:
        """Of the eligible complexes."""
        ids: list[str] = self.index["assembly_id"].take(self.rows).to_pylist()
        return ids

    def largest(self) -> int:
        """Row of the eligible complex with the largest slot."""
        return int(self.rows[np.argmax(self._nbytes[self.rows])])

    def place(self, row: int) -> AssemblyPlace:  # type: ignore[override]
        """Where the complex of a row of the table is."""
        span = self._assemblies.span(self.chain_id(row))
        return AssemblyPlace.of(self.number, span, self._nbytes[row])


class LoneChains(ChainCatalog):
    """Single chains, each a complex of one."""

    def largest(self) -> int:
        """Row of the longest eligible chain."""
        return int(self.rows[np.argmax(self.spans.dims[self.rows, 0])])

    def place(self, row: int) -> AssemblyPlace:  # type: ignore[override]
        """Where the chain of an index row is."""
        span = self.spans.span(row)
        nbytes = packed_nbytes(self.sizes(row)[0], 1, self.config)
        return AssemblyPlace.of(self.number, AssemblySpan(span.record_id, (span,)), nbytes)


def packed_nbytes(num_res: Any, num_entities: Any, config: LoaderConfig) -> Any:
    """Bytes of slots for complexes of these sizes. What takes more comes beside its slot."""
    rules = config.assemblies
    assert rules is not None
    rows = rules.msa_rows * num_entities + rules.paired_rows * (num_entities > 1)
    # A residue has ids, atoms, and a letter a row, of which few have deletions.
    return 4096 + num_res * (64 + 485 * (1 + rules.max_templates) + rows + rows // 2)


def _rows_in(names: pa.Array, among: pa.ChunkedArray) -> np.ndarray:
    """Row of each name, -1 for one that is not there."""
    found = pc.index_in(names, value_set=among.combine_chunks())
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False))


def eligible_assemblies(table: pa.Table, config: LoaderConfig) -> np.ndarray:
    """Rows of the table that the filters let through, ascending.

    AlphaFold-Multimer's: complexes coarser than 9 ångström are left out, and predicted ones of
    fewer than 200 residues.

    Raises:
        LoaderError: none is left; says which filter took how many.
    """
    filters = {
        "predicted, and fewer than 200 residues": column(table, "is_distillation")
        & (column(table, "num_res") < 200),
    }
    return let_through(table, "assembly", filters, config)

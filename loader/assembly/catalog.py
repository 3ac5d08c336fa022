"""The complexes a loader draws from, and single chains as complexes of one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import LoaderError
from evofeed.loader.catalog import ChainCatalog, ChainPlace, Places
from evofeed.loader.config import LoaderConfig
from evofeed.loader.order import column, let_through, whole_column
from evofeed.store import Assemblies


class AssemblyPlace(NamedTuple):
    """Where a complex is: everything a reader needs, so that it opens no index."""

    dataset: int
    chain_id: str
    """The complex's own name."""
    key: str
    offset: int
    """Of its first chain: what a storage is asked for to see whether it answers."""
    chains: tuple[ChainPlace, ...]
    """Of each entity."""
    pairing: tuple[ChainPlace | None, ...]
    copies: tuple[int, ...]
    whole: ChainPlace | None
    """All chains with their coordinates; None: those of the only chain's record."""

    @property
    def num_res(self) -> int:
        """Residues of all chains."""
        pairs = zip(self.chains, self.copies, strict=True)
        return sum(chain.sizes[0] * number for chain, number in pairs)


class AssemblyCatalog(ChainCatalog):
    """The complexes of one dataset that may be drawn."""

    def __init__(self, assemblies: Assemblies, number: int, config: LoaderConfig) -> None:
        dataset = assemblies.dataset
        self.number, self.uri = number, dataset.uri
        self.index = table = assemblies.table
        self._chain_id = table["assembly_id"]
        self.rows = eligible_assemblies(table, config)
        self.resolution = column(table, "resolution")
        self.is_distillation = column(table, "is_distillation")
        self.cost = column(table, "cost")
        self._num_res = column(table, "num_res")
        self._chains = Places(dataset.index, number)
        self._members = Places(assemblies.member_index, number)
        chain_ids, member_ids = dataset.index["chain_id"], assemblies.member_index["chain_id"]
        entities = whole_column(table, "chain_ids")
        self._entity_at = entities.offsets.to_numpy()
        self._chain_rows = _rows_in(entities.flatten(), chain_ids)
        self._pairing_rows = _rows_in(whole_column(table, "pairing_ids").flatten(), member_ids)
        self._copies = whole_column(table, "copies").flatten().to_numpy()
        self._whole_rows = _rows_in(whole_column(table, "assembly_id"), member_ids)
        if (self._chain_rows < 0).any() or (self._whole_rows < 0).any():
            raise LoaderError("its assemblies name chains that are not in it", path=self.uri)
        sizes = column(dataset.index, "cluster_size")[self._chain_rows].clip(min=1)
        shares, counts = (
            np.add.reduceat(of_entity, self._entity_at[:-1])
            for of_entity in (self._copies / sizes, self._copies)
        )
        self.probability = (shares / np.maximum(counts, 1))[self.rows] if config.weighted else None

    @property
    def most_chains(self) -> int:
        """Chains of the largest eligible complex."""
        return int(column(self.index, "num_chains")[self.rows].max(initial=1))

    def sizes(self, row: int) -> tuple[int, int, int, int]:
        """Residues of the complex of a row of the table; the rest is its chains' own."""
        return int(self._num_res[row]), 0, 0, 0

    def largest(self) -> int:
        """Row of the eligible complex that needs most memory, nearly."""
        return int(self.rows[np.argmax(self.cost[self.rows])])

    def place(self, row: int) -> AssemblyPlace:  # type: ignore[override]
        """Where the complex of a row of the table is."""
        entities = range(self._entity_at[row], self._entity_at[row + 1])
        chains = tuple(self._chains.place(int(self._chain_rows[e])) for e in entities)
        pairing = [int(self._pairing_rows[e]) for e in entities]
        return AssemblyPlace(
            dataset=self.number,
            chain_id=self.chain_id(row),
            key=chains[0].key,
            offset=chains[0].offset,
            chains=chains,
            pairing=tuple(self._members.place(r) if r >= 0 else None for r in pairing),
            copies=tuple(int(self._copies[e]) for e in entities),
            whole=self._members.place(int(self._whole_rows[row])),
        )


class LoneChains(ChainCatalog):
    """Single chains, each a complex of one."""

    def place(self, row: int) -> AssemblyPlace:  # type: ignore[override]
        """Where the chain of an index row is."""
        chain = super().place(row)
        only = (chain,)
        return AssemblyPlace(
            self.number, chain.chain_id, chain.key, chain.offset, only, (None,), (1,), None
        )


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

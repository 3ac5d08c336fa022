"""Which rows of the chains' alignments stand side by side in a complex's MSA.

Everything here is decided on the host, in whole numbers and stable sorts: it fixes the shapes
of what the device makes, and is the same on every machine. Source: AlphaFold-Multimer, section
7.2, and its `msa_pairing.py` as OpenFold has it (commit ce0029e).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Int, UInt8
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.views.cells import SpeciesRows
from evofeed.loader.views.entry_view import numbers_within
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """The rows of a merged MSA: `paired` first, each entity's `unpaired` ones below others'."""

    paired: Int[np.ndarray, "R entities"]
    """Row of the alignment to pair of each entity, -1 where it has gaps."""
    unpaired: tuple[Int[np.ndarray, " _"], ...]
    """Rows of the alignment of each entity."""

    @property
    def num_rows(self) -> int:
        """Rows of the merged MSA, without padding."""
        return len(self.paired) + sum(len(rows) for rows in self.unpaired)


def similarity(msa: UInt8[np.ndarray, "N L"]) -> Int[np.ndarray, " N"]:
    """Columns in which each row equals the query, its first row; gaps count as a letter."""
    return np.asarray(np.count_nonzero(msa == msa[:1], axis=1), np.int64)


def _pairing(record: AssemblyRecord) -> list[ChainRecord]:
    """Of each entity the alignment to pair, the query alone where there is none."""
    pairs = zip(record.chains, record.pairing, strict=True)
    return [rows or one.replace(msa=one.msa[:1], msa_species=("",)) for one, rows in pairs]


def pair_rows(record: AssemblyRecord, config: AssemblyConfig) -> Int[np.ndarray, "R entities"]:
    """Rows of each entity that are paired, the queries first; -1 where an entity has none.

    Of each species that two chains have, the rows most like their queries stand together, then
    the second ones, as many as the chain with the fewest has. Copies are chains: a species of
    one entity of two copies pairs those. Rows of more chains come first, then those whose row
    numbers have the smaller product; what is equal stays in the order of species and similarity.
    """
    copies = np.array([len(names) for names in record.copies])
    pairing = _pairing(record)
    names = sorted({name for rows in pairing for name in rows.msa_species} - {""})
    numbers = {"": -1, **{name: number for number, name in enumerate(names)}}
    species = [np.array([numbers[name] for name in rows.msa_species]) for rows in pairing]
    orders = [
        np.lexsort((-similarity(rows.msa), own)) for rows, own in zip(pairing, species, strict=True)
    ]  # by species, within it by falling similarity, within that by row
    table = SpeciesRows.of(species, orders)
    chains = (table.counts > 0) @ copies
    wanted = np.flatnonzero((chains > 1) & (table.counts.max(1) <= config.max_species_rows))
    fewest = np.where(table.counts > 0, table.counts, np.iinfo(np.int64).max).min(1)[wanted]
    taken = table.taken(np.repeat(wanted, fewest)[:, None], numbers_within(fewest)[:, None])
    rows = np.concatenate([np.zeros([1, len(pairing)], np.int64), taken])
    paired = np.concatenate([[copies.sum()], np.repeat(chains[wanted], fewest)])
    by_product = np.argsort(_products(rows, copies, wrap=config.wrapped_products), kind="stable")
    ordered = by_product[np.argsort(-paired[by_product], kind="stable")]
    return rows[ordered]


def _products(
    rows: Int[np.ndarray, "R entities"], copies: Int[np.ndarray, " entities"], *, wrap: bool
) -> np.ndarray:
    """The size of the product of all chains' row numbers, exactly or as 64 bits hold it."""
    most = int(np.abs(rows).max(initial=1))
    if wrap or most ** int(copies.sum()) < 1 << 63:
        with np.errstate(over="ignore"):
            return np.asarray(np.abs(np.prod(np.repeat(rows, copies, axis=1), axis=1)))
    exact = np.abs(rows).astype(object)
    return np.asarray(np.prod(exact ** copies.astype(object), axis=1))


def plan_rows(record: AssemblyRecord, config: AssemblyConfig) -> RowPlan:
    """The rows of a complex's merged MSA.

    One distinct sequence is not paired: its rows stand beside themselves. Of several, paired
    rows are chosen first; an unpaired row that is the same as a paired one of its chain is left
    out, and of each chain `config.msa_rows` stay in all.
    """
    if len(record.chains) == 1:
        rows = np.arange(min(record.chains[0].num_alignments, config.msa_rows), dtype=np.int64)
        return RowPlan(np.zeros([0, 1], np.int64), (rows,))
    paired = pair_rows(record, config)
    kept = paired[: config.paired_rows]
    unpaired = []
    for number, (chain, pairs) in enumerate(zip(record.chains, _pairing(record), strict=True)):
        fresh = _not_among(chain.msa, pairs.msa, paired[:, number])
        there = pairs.msa[kept[kept[:, number] >= 0, number]]
        room = config.msa_rows - np.count_nonzero((there != GAP).any(-1))
        unpaired.append(fresh[: max(room, 0)])
    return RowPlan(kept, tuple(unpaired))


def _not_among(msa: np.ndarray, pair_msa: np.ndarray, paired: np.ndarray) -> np.ndarray:
    """Rows of `msa` that are none of the paired ones, gaps for -1 included."""
    used = set(_as_bytes(pair_msa[np.unique(paired[paired >= 0])]))
    if (paired < 0).any():
        used.add(bytes([GAP]) * msa.shape[1])
    fresh = [number for number, row in enumerate(_as_bytes(msa)) if row not in used]
    return np.array(fresh, np.int64)


def _as_bytes(rows: UInt8[np.ndarray, "N L"]) -> list[bytes]:
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1])))
    return whole.ravel().tolist()  # type: ignore[return-value]

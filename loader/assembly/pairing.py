"""Pairing of the chains' alignment rows in a complex's MSA.

Decided on the host with integers and stable sorts: the result fixes the shapes of the device's
tensors and is the same on every machine. Source: AlphaFold-Multimer, section 7.2, and
`msa_pairing.py` in OpenFold (commit ce0029e).
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
    """The rows of a merged MSA: `paired` first, then the `unpaired` rows entity by entity."""

    paired: Int[np.ndarray, "R entities"]
    """Row of each entity's alignment for pairing, -1 for a row of gaps."""
    unpaired: tuple[Int[np.ndarray, " _"], ...]
    """Rows of each entity's alignment."""

    @property
    def num_rows(self) -> int:
        """Rows of the merged MSA, without padding."""
        return len(self.paired) + sum(len(rows) for rows in self.unpaired)


def similarity(msa: UInt8[np.ndarray, "N L"]) -> Int[np.ndarray, " N"]:
    """Number of columns in which each row equals the query (row 0); gaps count as a letter."""
    return np.asarray(np.count_nonzero(msa == msa[:1], axis=1), np.int64)


def _pairing(record: AssemblyRecord) -> list[ChainRecord]:
    """The alignment for pairing of each entity; the query alone where it has none."""
    pairs = zip(record.chains, record.pairing, strict=True)
    return [rows or chain.replace(msa=chain.msa[:1], msa_species=("",)) for chain, rows in pairs]


def pair_rows(record: AssemblyRecord, config: AssemblyConfig) -> Int[np.ndarray, "R entities"]:
    """Paired rows of each entity, the queries first; -1 where an entity has no row.

    For each species of two or more chains, the rows most similar to their queries are paired, then
    the second ones, up to the number of rows of the chain with the fewest. Copies are chains: a
    species of one entity with two copies is paired. Rows of more chains come first, then those
    with the smaller product of row numbers; ties stay in the order of species and similarity.
    """
    copies = np.array([len(names) for names in record.copies])
    pairing = _pairing(record)
    names = sorted({name for rows in pairing for name in rows.msa_species} - {""})
    numbers = {"": -1, **{name: number for number, name in enumerate(names)}}
    species = [np.array([numbers[name] for name in rows.msa_species]) for rows in pairing]
    orders = [
        np.lexsort((-similarity(rows.msa), ids)) for rows, ids in zip(pairing, species, strict=True)
    ]  # by species, then by decreasing similarity, then by row
    table = SpeciesRows.of(species, orders)
    chains = (table.counts > 0) @ copies
    shared = np.flatnonzero((chains > 1) & (table.counts.max(1) <= config.max_species_rows))
    fewest = np.where(table.counts > 0, table.counts, np.iinfo(np.int64).max).min(1)[shared]
    taken = table.select(np.repeat(shared, fewest)[:, None], numbers_within(fewest)[:, None])
    rows = np.concatenate([np.zeros([1, len(pairing)], np.int64), taken])
    num_chains = np.concatenate([[copies.sum()], np.repeat(chains[shared], fewest)])
    by_product = np.argsort(_products(rows, copies, wrap=config.wrapped_products), kind="stable")
    return rows[by_product[np.argsort(-num_chains[by_product], kind="stable")]]


def _products(
    rows: Int[np.ndarray, "R entities"], copies: Int[np.ndarray, " entities"], *, wrap: bool
) -> np.ndarray:
    """Absolute product of all chains' row numbers, exact or (`wrap`) modulo 64 bits."""
    largest = int(np.abs(rows).max(initial=1))
    if wrap or largest ** int(copies.sum()) < 1 << 63:
        with np.errstate(over="ignore"):
            return np.asarray(np.abs(np.prod(np.repeat(rows, copies, axis=1), axis=1)))
    exact = np.abs(rows).astype(object)
    return np.asarray(np.prod(exact ** copies.astype(object), axis=1))


def plan_rows(record: AssemblyRecord, config: AssemblyConfig) -> RowPlan:
    """The rows of a complex's merged MSA.

    A homomer is not paired: all its copies have the same rows. Otherwise rows are paired first;
    unpaired rows that duplicate a paired row of their chain are dropped, and each chain has at
    most `config.msa_rows` rows in total.
    """
    if len(record.chains) == 1:
        rows = np.arange(min(record.chains[0].num_alignments, config.msa_rows), dtype=np.int64)
        return RowPlan(np.zeros([0, 1], np.int64), (rows,))
    paired = pair_rows(record, config)
    selected = paired[: config.paired_rows]
    unpaired = []
    for number, (chain, pairs) in enumerate(zip(record.chains, _pairing(record), strict=True)):
        rows = _unpaired_rows(chain.msa, pairs.msa, paired[:, number])
        paired_msa = pairs.msa[selected[selected[:, number] >= 0, number]]
        room = config.msa_rows - np.count_nonzero((paired_msa != GAP).any(-1))
        unpaired.append(rows[: max(room, 0)])
    return RowPlan(selected, tuple(unpaired))


def _unpaired_rows(msa: np.ndarray, pair_msa: np.ndarray, paired: np.ndarray) -> np.ndarray:
    """Rows of `msa` that equal no paired row; -1 stands for a row of gaps."""
    used = set(_as_bytes(pair_msa[np.unique(paired[paired >= 0])]))
    if (paired < 0).any():
        used.add(bytes([GAP]) * msa.shape[1])
    unpaired = [number for number, row in enumerate(_as_bytes(msa)) if row not in used]
    return np.array(unpaired, np.int64)


def _as_bytes(rows: UInt8[np.ndarray, "N L"]) -> list[bytes]:
    """Each row as bytes."""
    voids = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1])))
    return voids.ravel().tolist()  # type: ignore[return-value]

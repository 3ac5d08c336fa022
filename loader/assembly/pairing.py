"""Which rows of the chains' alignments stand side by side in a complex's MSA.

Everything here is decided on the host, in whole numbers and stable sorts: it fixes the shapes
of what the device makes, and is the same on every machine. Source: AlphaFold-Multimer, section
7.2, and its `msa_pairing.py` as OpenFold has it (commit ce0029e).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Int, UInt8
from evofeed.loader.config import AssemblyConfig
from evofeed.protein.assembly_record import chain_numbers
from evofeed.protein.residues import GAP

_KEY_BYTES: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class EntityRows:
    """The alignments of one distinct sequence of a complex: restype codes 0-21.

    `pair_msa` is the alignment to pair by species, its query first, with a key of the species
    of each row (`species_keys`, 0 where it is unknown).
    """

    msa: UInt8[np.ndarray, "N L"]
    pair_msa: UInt8[np.ndarray, "P L"]
    species: Int[np.ndarray, " P"]
    copies: int

    @classmethod
    def of(
        cls,
        msa: UInt8[np.ndarray, "N L"],
        copies: int,
        pair_msa: UInt8[np.ndarray, "P L"] | None,
        species: Sequence[str] = (),
    ) -> EntityRows:
        """From names of species; without an alignment to pair, the query alone is paired."""
        if pair_msa is None:
            return cls(msa, msa[:1], np.zeros(1, np.int64), copies)
        return cls(msa, pair_msa, species_keys(species), copies)


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """The rows of a merged MSA: `paired` first, then each entity's `unpaired` ones below others'.

    Attributes:
        paired: row of `pair_msa` of each entity, -1 where it has gaps.
        unpaired: rows of `msa` of each entity.
    """

    paired: Int[np.ndarray, "R entities"]
    unpaired: tuple[Int[np.ndarray, " _"], ...]

    @property
    def num_rows(self) -> int:
        """Rows of the merged MSA, without padding."""
        return len(self.paired) + sum(len(rows) for rows in self.unpaired)


def residue_ids(copies: Sequence[int], lengths: Sequence[int]) -> Int[np.ndarray, "3 L"]:
    """Number of chain, entity and copy of every residue; `lengths` are of each entity."""
    return np.repeat(chain_numbers(copies), np.repeat(lengths, copies), axis=1)


def species_keys(species: Sequence[str]) -> Int[np.ndarray, " N"]:
    """A whole number a species, in the order of their names; 0 for none.

    Names of up to eight ASCII letters are numbers by themselves; of others, which no database
    has, the first eight bytes decide and their length.
    """
    try:  # as databases have them: thousands at once
        short = np.array(species, np.bytes_)
    except UnicodeEncodeError:
        short = np.zeros(0, "S9")
    if short.itemsize <= _KEY_BYTES:
        return short.astype(f"S{_KEY_BYTES}").view(">u8").astype(np.int64)
    keys = {name: _key(name) for name in set(species)}
    return np.array([keys[name] for name in species], np.int64)


def _key(name: str) -> int:
    text = name.encode("utf-8", "surrogatepass")
    if len(text) > _KEY_BYTES or not text.isascii():
        text = text[: _KEY_BYTES - 1] + bytes([len(text) % 256])
    return int.from_bytes(text.ljust(_KEY_BYTES, b"\0"), "big") & (1 << 63) - 1


def similarity(msa: UInt8[np.ndarray, "N L"]) -> Int[np.ndarray, " N"]:
    """Columns in which each row equals the query, its first row; gaps count as a letter."""
    return np.asarray(np.count_nonzero(msa == msa[:1], axis=1), np.int64)


def pair_rows(
    species: Sequence[Int[np.ndarray, " _"]],
    similar: Sequence[Int[np.ndarray, " _"]],
    copies: Sequence[int],
    config: AssemblyConfig,
) -> Int[np.ndarray, "R entities"]:
    """Rows of each entity that are paired, the queries first; -1 where an entity has none.

    Of each species that two chains have, the rows most like their queries stand together, then
    the second ones, as many as the chain with the fewest has. Copies are chains: a species of
    one entity of two copies pairs those. Rows of more chains come first, then those whose row
    numbers have the smaller product; what is equal stays in the order of species and similarity.

    Args:
        species: key of each row's species, 0 for unknown, for each entity.
        similar: columns equal to the query, likewise.
        copies: chains of each entity.
        config: `max_species_rows`, `wrapped_products`.
    """
    number = np.asarray(copies, np.int64)
    orders = [
        np.lexsort((-alike, kind)) for kind, alike in zip(species, similar, strict=True)
    ]  # by species, within it by falling similarity, within that by row
    names = np.unique(np.concatenate([kind[kind != 0] for kind in species]))
    sorted_kinds = [kind[order] for kind, order in zip(species, orders, strict=True)]
    starts = np.stack([np.searchsorted(kinds, names, "left") for kinds in sorted_kinds], -1)
    counts = np.stack([np.searchsorted(kinds, names, "right") for kinds in sorted_kinds], -1)
    counts -= starts
    chains = (counts > 0) @ number
    wanted = (chains > 1) & (counts.max(-1, initial=0) <= config.max_species_rows)
    starts, counts, chains = starts[wanted], counts[wanted], chains[wanted]
    take = np.where(counts > 0, counts, np.iinfo(np.int64).max).min(-1, initial=1 << 62)
    take = take if len(take) else np.zeros(0, np.int64)
    rank = np.arange(take.sum()) - np.repeat(np.cumsum(take) - take, take)
    rows = np.zeros([1 + len(rank), len(orders)], np.int64)
    for entity, order in enumerate(orders):
        there = np.repeat(counts[:, entity] > 0, take)
        place = np.repeat(starts[:, entity], take) + rank
        rows[1:, entity] = np.where(there, order[np.where(there, place, 0)], -1)
    paired = np.concatenate([[number.sum()], np.repeat(chains, take)])
    by_product = np.argsort(_products(rows, number, wrap=config.wrapped_products), kind="stable")
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


def plan_rows(entities: Sequence[EntityRows], config: AssemblyConfig) -> RowPlan:
    """The rows of a complex's merged MSA.

    One distinct sequence is not paired: its rows stand beside themselves. Of several, paired
    rows are chosen first; an unpaired row that is the same as a paired one of its chain is left
    out, and of each chain `config.msa_rows` stay in all.
    """
    if len(entities) == 1:
        only = entities[0]
        rows = np.arange(min(len(only.msa), config.msa_rows), dtype=np.int64)
        return RowPlan(np.zeros([0, 1], np.int64), (rows,))
    paired = pair_rows(
        [entity.species for entity in entities],
        [similarity(entity.pair_msa) for entity in entities],
        [entity.copies for entity in entities],
        config,
    )
    kept = paired[: config.paired_rows]
    unpaired = []
    for number, entity in enumerate(entities):
        fresh = _not_among(entity.msa, entity.pair_msa, paired[:, number])
        room = config.msa_rows - _count_with_residues(entity.pair_msa, kept[:, number])
        unpaired.append(fresh[: max(room, 0)])
    return RowPlan(kept, tuple(unpaired))


def _count_with_residues(msa: np.ndarray, rows: np.ndarray) -> int:
    real: Bool[np.ndarray, " P"] = (msa[rows[rows >= 0]] != GAP).any(-1)
    return int(np.count_nonzero(real))


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

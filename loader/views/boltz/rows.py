"""Which rows of the chains' alignments stand side by side in a Boltz sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Int
from evofeed.loader.views.cells import letter_table, species_numbers
from evofeed.loader.views.config import BoltzConfig
from evofeed.protein.alignment import Alignment

GAP_CODE: Final = 1
"""Code of a gap in Boltz's vocabulary."""
UNKNOWN: Final = 22
"""Code of an unknown amino acid; also of B, J, O, U, X, Z and of atoms that are tokens."""


CODES: Final = letter_table(2, "ARNDCQEGHILKMFPSTWYV", UNKNOWN, GAP_CODE)
"""Boltz's code of every letter of an alignment."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainRows:
    """The rows that Boltz has of a chain: without those that differ by gaps alone.

    Attributes:
        rows: of the alignment, the query first; one row for a chain without an alignment.
        species: a number a species, the same in all chains; -1 for none.
    """

    rows: Int[np.ndarray, " S"]
    species: Int[np.ndarray, " S"]


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """R rows of C chains' merged alignment.

    Attributes:
        rows: number in `ChainRows.rows`; -1 where a chain has gaps.
        is_paired: whether the row was put there by its species.
    """

    rows: Int[np.ndarray, "R C"]
    is_paired: Bool[np.ndarray, "R C"]


def distinct_rows(alignment: Alignment, most: int) -> Int[np.ndarray, " S"]:
    """Rows whose letters, insertions included and gaps not, no earlier row has."""
    _, first = np.unique(alignment.row_gapless, return_index=True)
    return np.sort(first)[:most]


def chain_rows(alignments: Sequence[Alignment | None], most: int) -> list[ChainRows]:
    """The rows of every chain, with species numbered over all of them."""
    once = {id(alignment): alignment for alignment in alignments if alignment is not None}
    found = {}
    for alignment, species in zip(once.values(), species_numbers([*once.values()]), strict=True):
        rows = distinct_rows(alignment, most)
        found[id(alignment)] = ChainRows(rows, species[rows])
    alone = ChainRows(np.zeros(1, np.int64), np.full(1, -1, np.int64))
    return [alone if alignment is None else found[id(alignment)] for alignment in alignments]


def plan_rows(chains: Sequence[ChainRows], rows: int | None, config: BoltzConfig) -> RowPlan:
    """The rows of the chains of a crop, each copy of a chain by itself.

    Species of most chains come first, then those that come first in the chains; of each, as many
    rows as its richest chain has, the others' repeated from the first. Chains without the species
    give their next free row. Then free rows stand side by side, those of shorter alignments gaps.
    `rows` is how many to plan; None plans all.
    """
    limit = config.max_rows if rows is None else min(rows, config.max_rows)
    counts, starts, members = _species_table(chains)
    deepest = counts.max(1, initial=0)
    last = max(min(config.max_pairs, limit), 1) - 1
    group = np.repeat(np.arange(len(counts)), deepest)[:last]
    rank = np.arange(len(group)) - np.repeat(np.cumsum(deepest) - deepest, deepest)[:last]
    columns, paired, free = [], [], []
    for number, chain in enumerate(chains):
        has = counts[group, number] > 0
        which = starts[group, number] + rank % np.maximum(counts[group, number], 1)
        chosen = members[number][np.where(has, which, 0)] if len(members[number]) else 0 * group
        available = np.arange(1, len(chain.rows))
        if not config.reused_rows:
            available = np.setdiff1d(available, members[number])
        turn = np.cumsum(~has) - 1
        ready = np.append(available, -1)[np.minimum(turn, len(available))]
        columns.append(np.concatenate([[0], np.where(has, chosen, ready)]))
        paired.append(np.concatenate([[True], has]))
        free.append(available[np.count_nonzero(~has) :])
    left = max(min(max(len(rest) for rest in free), limit - len(group) - 1), 0)
    below = np.full([left, len(chains)], -1, np.int64)
    for number, rest in enumerate(free):
        below[: len(rest), number] = rest[:left]
    plan = np.concatenate([np.stack(columns, 1), below])
    flags = np.concatenate([np.stack(paired, 1), np.zeros(below.shape, np.bool_)])
    return RowPlan(plan, flags)


def _species_table(
    chains: Sequence[ChainRows],
) -> tuple[np.ndarray, np.ndarray, list[Int[np.ndarray, " _"]]]:
    """Rows of each species a chain, where they begin, and each chain's rows by species.

    Species of two rows or more, those of most chains first.
    """
    species = np.concatenate([chain.species for chain in chains])
    of = np.repeat(np.arange(len(chains)), [len(chain.species) for chain in chains])
    known = species >= 0
    names, first, group = np.unique(species[known], return_index=True, return_inverse=True)
    counts = np.zeros([len(names), len(chains)], np.int64)
    np.add.at(counts, (group, of[known]), 1)
    order = np.argsort(first, kind="stable")
    order = order[counts[order].sum(1) > 1]
    order = order[np.argsort(-(counts[order] > 0).sum(1), kind="stable")]
    counts = counts[order]
    members = []
    for chain in chains:
        rank = np.full(len(names) + 1, len(names))
        rank[order] = np.arange(len(order))
        number = np.searchsorted(names, chain.species)
        there = (chain.species >= 0) & (number < len(names))
        key = rank[np.where(there, number, len(names))]
        by_species = np.argsort(key, kind="stable")
        members.append(by_species[key[by_species] < len(order)])
    starts = np.cumsum(counts, 0) - counts
    return counts, starts, members

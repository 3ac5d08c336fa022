"""Which rows of the chains' alignments stand side by side in a Boltz sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Int
from evofeed.loader.views.cells import (
    RowPlan,
    ShownRows,
    SpeciesRows,
    letter_table,
    species_numbers,
)
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.entry_view import numbers_within
from evofeed.protein.alignment import Alignment

GAP_CODE: Final = 1
"""Code of a gap in Boltz's vocabulary."""
UNKNOWN: Final = 22
"""Code of an unknown amino acid; also of B, J, O, U, X, Z and of atoms that are tokens."""


CODES: Final = letter_table(2, "ARNDCQEGHILKMFPSTWYV", UNKNOWN, GAP_CODE)
"""Boltz's code of every letter of an alignment."""


def distinct_rows(alignment: Alignment, most: int) -> Int[np.ndarray, " S"]:
    """Rows whose letters, insertions included and gaps not, no earlier row has."""
    _, first = np.unique(alignment.row_gapless, return_index=True)
    return np.sort(first)[:most]


def plan_rows(
    chains: Int[np.ndarray, " C"],
    alignments: Sequence[Alignment | None],
    rows: int | None,
    config: BoltzConfig,
) -> tuple[RowPlan, Bool[np.ndarray, "R C"]]:
    """The rows of the chains of a crop, and of each chain which are there by their species.

    Species of most chains come first, then those that come first in the chains; of each, as many
    rows as its richest chain has, the others' repeated from the first. Chains without the species
    give their next free row. Then free rows stand side by side, those of shorter alignments gaps.
    A chain without an alignment has its first row alone. `rows` is how many to plan; None plans
    all.
    """
    limit = config.max_rows if rows is None else min(rows, config.max_rows)
    own, species = _distinct(alignments, config.max_rows)
    table = SpeciesRows.of(species)
    counts, order = table.counts, _pairing_order(table.counts, species)
    deepest = counts[order].max(1, initial=0)
    last = max(min(config.max_pairs, limit), 1) - 1
    group, rank = np.repeat(order, deepest)[:last], numbers_within(deepest)[:last]
    has = counts[group] > 0
    chosen = table.taken(group[:, None], rank[:, None] % np.maximum(counts[group], 1))
    free = []
    for number, mine in enumerate(species):
        available = np.arange(1, len(mine))
        if not config.reused_rows:
            available = available[~np.isin(mine[1:], order)]
        turn = np.cumsum(~has[:, number]) - 1
        ready = np.append(available, -1)[np.minimum(turn, len(available))]
        chosen[:, number] = np.where(has[:, number], chosen[:, number], ready)
        free.append(available[np.count_nonzero(~has[:, number]) :])
    left = max(min(max(len(rest) for rest in free), limit - len(group) - 1), 0)
    plan = np.full([1 + len(group) + left, len(chains)], -1, np.int64)
    plan[0], plan[1 : 1 + len(group)] = 0, chosen
    paired = np.zeros(plan.shape, bool)
    paired[0], paired[1 : 1 + len(group)] = True, has
    shown = []
    for number, alignment in enumerate(alignments):
        place, mine = plan[:, number], own[number]
        plan[len(group) + 1 :, number][: len(free[number])] = free[number][:left]
        if alignment is not None:
            which = np.where(place >= 0, mine[place], -1)
            deleted = np.where(place == 0, which, -1) if config.narrowed_deletions else which
            shown.append(
                ShownRows(int(chains[number]), alignment, CODES, which, deleted, mine, len(mine))
            )
    return RowPlan(tuple(shown), len(plan), 1 + len(group)), paired


def _distinct(
    alignments: Sequence[Alignment | None], most: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows of each chain without those that differ by gaps alone, and their species.

    Species are numbered over all chains, -1 for none; a chain without an alignment has one row.
    """
    once = {id(alignment): alignment for alignment in alignments if alignment is not None}
    found = {id(None): (np.zeros(1, np.int64), np.full(1, -1))}
    for alignment, species in zip(once.values(), species_numbers([*once.values()]), strict=True):
        rows = distinct_rows(alignment, most)
        found[id(alignment)] = rows, species[rows]
    pairs = [found[id(alignment)] for alignment in alignments]
    return [rows for rows, _ in pairs], [species for _, species in pairs]


def _pairing_order(
    counts: Int[np.ndarray, "s C"], species: Sequence[Int[np.ndarray, " _"]]
) -> Int[np.ndarray, " p"]:
    """Species of two rows or more, those of most chains first, then those that come first."""
    names, first = np.unique(np.concatenate(species), return_index=True)
    order = names[np.argsort(first, kind="stable")]
    order = order[order >= 0]
    order = order[counts[order].sum(1) > 1]
    sorted_order: np.ndarray = order[np.argsort(-(counts[order] > 0).sum(1), kind="stable")]
    return sorted_order

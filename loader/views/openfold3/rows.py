"""Which rows of which alignments a sample of OpenFold3 has: paired by species, and drawn.

Rows are numbers in an `Alignment`; letters are looked at only to find rows that are gaps alone.
Source: AF3 SI 2.2 and 2.3; AlphaFold-Multimer 7.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.cells import rows_not_among, species_numbers
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.draws import OpenFold3Draws
from evofeed.loader.views.entry_view import ChainType, EntryView, counts_before
from evofeed.protein.alignment import Alignment


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Rows of a sample's MSA: c chains with an alignment, S rows, the query first.

    A row of -1 is all gaps.
    """

    chains: Integer[np.ndarray, " c"]
    """Rows of the entry's chains."""
    rows: tuple[Integer[np.ndarray, " S"], ...]
    """Rows of every chain's alignment."""
    depth: Integer[np.ndarray, " c"]
    """Rows up to the chain's last one; those below are padding."""
    num_paired: int
    """Rows that belong together, the query counted in."""
    main: tuple[Integer[np.ndarray, " _"], ...]
    """Rows of every chain's main MSA before any was drawn or left out: those of the profile."""


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Rows that belong together, n of them, of r alignments."""

    taken: tuple[Integer[np.ndarray, " _"], ...]
    """Rows of every alignment that may pair, in order."""
    number: Integer[np.ndarray, "n r"]
    """Which of these rows, from 1; -1 where an alignment has no part."""


def plan_rows(
    view: EntryView,
    in_crop: Bool[np.ndarray, " C"],
    alignments: Sequence[Alignment],
    draws: OpenFold3Draws,
    config: OpenFold3Config,
) -> RowPlan:
    """The rows of a sample."""
    polymer = np.isin(view.chain_type, (ChainType.PROTEIN, ChainType.RNA))
    chains = np.flatnonzero(in_crop & polymer & (view.chain_alignment >= 0))
    chains = chains[np.argsort(view.chain_name[chains], kind="stable")]
    if not len(chains):
        return RowPlan(chains, (), np.zeros(0, np.int64), 1, ())
    number = view.chain_alignment[chains]
    protein = view.chain_type[chains] == ChainType.PROTEIN
    own = {int(one): alignments[one] for one in np.unique(number)}
    paired = _paired(own, number, protein, config)
    count = len(next(iter(paired.values())))
    limit = max(0, config.max_rows - count - 1)
    query = np.zeros(1, np.int64)
    every = {one: main_rows(alignment, config) for one, alignment in own.items()}
    main = {
        one: rows_not_among(alignment, every[one], paired[one]) for one, alignment in own.items()
    }
    rows = []
    for one in number.tolist():
        taken, letters = main[one], own[one].row_letters
        if not config.query_twice:
            taken = taken[letters[taken] != letters[0]]
        if config.subsample_main:
            taken = _drawn(taken, limit, draws, config)
        rows.append(np.concatenate([query, paired[one], taken[:limit]]))
    depth = np.array([len(one) for one in rows])
    total = int(depth.max())
    full = tuple(np.pad(one, (0, total - len(one)), constant_values=-1) for one in rows)
    of_chains = tuple(every[one] for one in number.tolist())
    return _used(RowPlan(chains, full, depth, count + 1, of_chains), draws, config)


def _drawn(
    rows: np.ndarray, limit: int, draws: OpenFold3Draws, config: OpenFold3Config
) -> np.ndarray:
    if not len(rows) or not limit:
        return rows[:0]
    order = draws.main_rows(len(rows))
    order = np.sort(order) if config.sorted_then_cut else np.sort(order[:limit])
    drawn: np.ndarray = rows[order]
    return drawn


def _used(plan: RowPlan, draws: OpenFold3Draws, config: OpenFold3Config) -> RowPlan:
    """The rows that are sent, if not all are."""
    total = len(plan.rows[0])
    if config.used_rows is None or total <= config.used_rows:
        return plan
    used = draws.used_rows(total, config.used_rows)
    return RowPlan(
        plan.chains,
        tuple(rows[used] for rows in plan.rows),
        np.searchsorted(used, plan.depth),
        int(np.searchsorted(used, plan.num_paired)),
        plan.main,
    )


def main_rows(alignment: Alignment, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Rows of the main MSA, of equal ones the first; their letters make the profile."""
    return alignment.first_of_equal(alignment.rows_of(*config.main_sources))


def _paired(
    alignments: dict[int, Alignment],
    number: np.ndarray,
    protein: np.ndarray,
    config: OpenFold3Config,
) -> dict[int, Integer[np.ndarray, " n"]]:
    """Paired rows of every alignment, -1 for a row it has no part in."""
    nothing = {one: np.zeros(0, np.int64) for one in alignments}
    own = [
        one
        for one in sorted(alignments, key=lambda one: alignments[one].name)
        if one in number[protein]
    ]
    with_rows = {one: _rows_to_pair(alignments[one], config) for one in own}
    with_rows = {one: rows for one, rows in with_rows.items() if len(rows)}
    if len(own) < 2 or len(with_rows) < 2:
        return nothing
    found = pair_by_species(
        [alignments[one] for one in with_rows], list(with_rows.values()), config
    )
    which = found.number
    if len(which) > config.max_paired_rows:
        columns = np.full([len(which), len(number)], -1)
        for column, one in enumerate(with_rows):
            columns[:, number == one] = which[:, column : column + 1]
        which = which[_by_products(columns, wrapped=config.wrapped_products)]
        which = which[: config.max_paired_rows]
    paired = {one: np.full(len(which), -1) for one in alignments}
    for column, (one, taken) in enumerate(zip(with_rows, found.taken, strict=True)):
        places = np.append(taken, -1)
        paired[one] = places[np.where(which[:, column] >= 0, which[:, column] - 1, -1)]
    return paired


def _rows_to_pair(alignment: Alignment, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Rows with species, without the query of each file."""
    parts = [alignment.rows_of(source)[1:] for source in config.pair_sources]
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    kept: np.ndarray = rows[alignment.row_species[rows] >= 0]
    return kept


def pair_by_species(
    alignments: Sequence[Alignment],
    rows: Sequence[Integer[np.ndarray, " _"]],
    config: OpenFold3Config,
) -> PairedRows:
    """Rows of species that several alignments share, those of most alignments first.

    Rows of a species pair in the order of the file; what is left of it pairs again among fewer
    alignments.
    """
    numbers = species_numbers(alignments)
    species = [every[own] for every, own in zip(numbers, rows, strict=True)]
    size = 1 + max(int(one.max(initial=0)) for one in species)
    taken = [_capped(one, config) for one in species]
    left = np.stack(
        [np.bincount(one[keep], minlength=size) for one, keep in zip(species, taken, strict=True)]
    )
    left[:, (left > 0).sum(0) < 2] = 0
    blocks: list[np.ndarray] = []
    count = 0
    for wanted in range(len(rows), min(config.min_paired_chains, len(rows)) - 1, -1):
        here = np.flatnonzero((left > 0).sum(0) == wanted)
        if not len(here):
            continue
        counts = left[:, here]
        fewest = np.where(counts > 0, counts, np.iinfo(np.int64).max).min(0)
        block = np.where(np.repeat(counts, fewest, 1) > 0, np.repeat(here, fewest), -1)
        blocks.append(block.T)
        left[:, here] = np.where(counts > 0, counts - fewest, 0)
        count += block.shape[1]
        if count >= config.max_paired_rows:
            break
    paired = np.concatenate(blocks) if blocks else np.zeros([0, len(rows)], np.int64)
    columns = [
        _next_rows(paired[:, column], one[keep])
        for column, (one, keep) in enumerate(zip(species, taken, strict=True))
    ]
    kept = tuple(own[keep] for own, keep in zip(rows, taken, strict=True))
    return PairedRows(kept, np.stack(columns, 1))


def _capped(species: np.ndarray, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Rows that may pair where a species has too many."""
    if config.first_of_species:
        return np.flatnonzero(counts_before(species) < config.max_rows_of_species)
    return np.flatnonzero(np.bincount(species)[species] <= config.max_rows_of_species)


def _next_rows(wanted: np.ndarray, species: np.ndarray) -> Integer[np.ndarray, " n"]:
    """For each species asked for, its next row, from 1; -1 for none."""
    order = np.argsort(species, kind="stable")
    start = np.searchsorted(species[order], wanted)
    out = np.full(len(wanted), -1)
    asked = wanted >= 0
    out[asked] = order[start[asked] + counts_before(wanted[asked])] + 1
    return out


def _by_products(rows: np.ndarray, *, wrapped: bool) -> Integer[np.ndarray, " n"]:
    """Order of paired rows: fewest gaps first, then the smallest product of row numbers."""
    if wrapped:
        with np.errstate(over="ignore"):
            size = np.abs(np.prod(rows, axis=1, dtype=np.int64))
    else:
        size = np.log(np.abs(rows)).sum(1)
    order: np.ndarray = np.lexsort([size, (rows == -1).sum(1)])
    return order

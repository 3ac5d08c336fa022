"""Which rows of which alignments a sample of OpenFold3 has: paired by species, and drawn.

Rows are numbers in an `Alignment`; letters are looked at only to find rows that are gaps alone.
Source: AF3 SI 2.2 and 2.3; AlphaFold-Multimer 7.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.cells import (
    RowPlan,
    ShownRows,
    SpeciesRows,
    letter_table,
    rows_not_among,
    species_numbers,
)
from evofeed.loader.views.columns import GAP_TYPE, RESTYPES, UNKNOWN
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import ChainType, EntryView, counts_before
from evofeed.protein.alignment import Alignment

LETTER_TYPES: Final = {
    ChainType.PROTEIN: letter_table(0, "ARNDCQEGHILKMFPSTWYV", UNKNOWN, GAP_TYPE),
    ChainType.RNA: letter_table(21, "AGCU", RESTYPES.index("N"), GAP_TYPE),
}
"""Residue types of the letters of an alignment."""


def plan_rows(
    view: EntryView,
    crop_chain: Integer[np.ndarray, " n"],
    alignments: Sequence[Alignment],
    draws: SampleDraws,
    config: OpenFold3Config,
) -> RowPlan:
    """The rows of a sample whose tokens are of these chains."""
    chains = np.unique(crop_chain)
    polymer = np.isin(view.chain_type[chains], list(LETTER_TYPES))
    chains = chains[polymer & (view.chain_alignment[chains] >= 0)]
    chains = chains[np.argsort(view.chain_name[chains], kind="stable")]
    if not len(chains):
        return RowPlan((), 1, 1)
    number = view.chain_alignment[chains]
    protein = view.chain_type[chains] == ChainType.PROTEIN
    own = {int(one): alignments[one] for one in np.unique(number)}
    paired = _paired(own, number, protein, config)
    count = len(next(iter(paired.values())))
    limit = max(0, config.max_rows - count - 1)
    query = np.zeros(1, np.int64)
    every = {  # of equal ones the first; their letters make the profile
        one: alignment.first_of_equal(alignment.rows_of(*config.main_sources))
        for one, alignment in own.items()
    }
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
    total = used = max(len(one) for one in rows)
    sent = np.arange(total)
    if config.used_rows is not None and total > config.used_rows:
        used = config.used_rows
        sent = np.sort(draws.some(Purpose.USED_ROWS, sent, used))
    shown = []
    for chain, one, mine in zip(chains.tolist(), number.tolist(), rows, strict=True):
        full = np.pad(mine, (0, total - len(mine)), constant_values=-1)[sent]
        others = np.append(-1, full[1:])  # the query has no deletions
        table = LETTER_TYPES[ChainType(view.chain_type[chain])]
        depth = int(np.searchsorted(sent, len(mine)))
        shown.append(ShownRows(chain, own[one], table, full, others, every[one], depth))
    return RowPlan(tuple(shown), used, int(np.searchsorted(sent, count + 1)))


def _drawn(rows: np.ndarray, limit: int, draws: SampleDraws, config: OpenFold3Config) -> np.ndarray:
    if not len(rows) or not limit:
        return rows[:0]
    order, size = draws.part(Purpose.MAIN_ROWS, len(rows), 1)
    order = np.sort(order[: size if config.sorted_then_cut else min(size, limit)])
    drawn: np.ndarray = rows[order]
    return drawn


def _paired(
    alignments: dict[int, Alignment],
    number: np.ndarray,
    protein: np.ndarray,
    config: OpenFold3Config,
) -> dict[int, Integer[np.ndarray, " n"]]:
    """Paired rows of every alignment, -1 for a row it has no part in."""
    paired = {one: np.zeros(0, np.int64) for one in alignments}
    own = sorted(alignments, key=lambda one: alignments[one].name)
    own = [one for one in own if one in number[protein]]
    rows = {one: _rows_to_pair(alignments[one], config) for one in own}
    rows = {one: mine for one, mine in rows.items() if len(mine)}
    if len(rows) < 2:
        return paired
    numbers = species_numbers([alignments[one] for one in rows])
    species = []
    for every, one in zip(numbers, rows, strict=True):
        rows[one] = rows[one][_capped(every[rows[one]], config)]
        species.append(every[rows[one]])
    places = _pair_by_species(species, config)
    if len(places) > config.max_paired_rows:
        columns = np.full([len(places), len(number)], -1)
        for column, one in enumerate(rows):
            mine = places[:, column, None]
            columns[:, number == one] = np.where(mine >= 0, mine + 1, -1)
        places = places[_by_products(columns, wrapped=config.wrapped_products)]
        places = places[: config.max_paired_rows]
    paired = {one: np.full(len(places), -1) for one in alignments}
    for place, (one, mine) in zip(places.T, rows.items(), strict=True):
        paired[one] = np.append(mine, -1)[place]
    return paired


def _rows_to_pair(alignment: Alignment, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Rows with species, without the query of each file."""
    parts = [alignment.rows_of(source)[1:] for source in config.pair_sources]
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    kept: np.ndarray = rows[alignment.row_species[rows] >= 0]
    return kept


def _capped(species: np.ndarray, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Rows that may pair where a species has too many."""
    if config.first_of_species:
        return np.flatnonzero(counts_before(species) < config.max_rows_of_species)
    return np.flatnonzero(np.bincount(species)[species] <= config.max_rows_of_species)


def _pair_by_species(
    species: Sequence[Integer[np.ndarray, " _"]], config: OpenFold3Config
) -> Integer[np.ndarray, "n r"]:
    """Rows of species that several of r alignments share, those of most alignments first.

    Rows of a species pair in the order of the file; what is left of it pairs again among fewer
    alignments. -1 where an alignment has no part.
    """
    table = SpeciesRows.of(species)
    left = table.counts.T.copy()
    left[:, (left > 0).sum(0) < 2] = 0
    blocks = [np.zeros([0, len(left)], np.int64)]
    count = 0
    for wanted in range(len(left), min(config.min_paired_chains, len(left)) - 1, -1):
        here = np.flatnonzero((left > 0).sum(0) == wanted)
        counts = left[:, here]
        fewest = np.where(counts > 0, counts, np.iinfo(np.int64).max).min(0)
        block = np.where(np.repeat(counts, fewest, 1) > 0, np.repeat(here, fewest), -1)
        blocks.append(block.T)
        left[:, here] = np.where(counts > 0, counts - fewest, 0)
        count += block.shape[1]
        if count >= config.max_paired_rows:
            break
    paired = np.concatenate(blocks)
    return table.taken(paired, np.stack([counts_before(column) for column in paired.T], 1))


def _by_products(rows: np.ndarray, *, wrapped: bool) -> Integer[np.ndarray, " n"]:
    """Order of paired rows: fewest gaps first, then the smallest product of row numbers."""
    if wrapped:
        with np.errstate(over="ignore"):
            size = np.abs(np.prod(rows, axis=1, dtype=np.int64))
    else:
        size = np.log(np.abs(rows)).sum(1)
    order: np.ndarray = np.lexsort([size, (rows == -1).sum(1)])
    return order

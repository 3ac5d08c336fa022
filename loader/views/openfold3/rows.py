"""Rows of the alignments in the MSA of an OpenFold3 sample: paired by species, then subsampled.

Rows are indices in an `Alignment`; letters are read only to find rows of gaps alone.
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
    ChainRows,
    RowPlan,
    SpeciesRows,
    letter_table,
    species_numbers,
    unpaired_rows,
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
    """The MSA rows of a sample with tokens of these chains."""
    chains = np.unique(crop_chain)
    polymer = np.isin(view.chain_type[chains], list(LETTER_TYPES))
    chains = chains[polymer & (view.chain_alignment[chains] >= 0)]
    chains = chains[np.argsort(view.chain_name[chains], kind="stable")]
    if not len(chains):
        return RowPlan((), 1, 1)
    numbers = view.chain_alignment[chains]
    protein = view.chain_type[chains] == ChainType.PROTEIN
    by_number = {int(number): alignments[number] for number in np.unique(numbers)}
    paired = _paired(by_number, numbers, protein, config)
    num_paired = 1 + len(next(iter(paired.values())))
    limit = max(0, config.max_rows - num_paired)
    query = np.zeros(1, np.int64)
    distinct = {  # the first of equal rows; they make the profile
        number: alignment.first_of_equal(alignment.rows_of(*config.main_sources))
        for number, alignment in by_number.items()
    }
    unpaired = {
        number: unpaired_rows(alignment, distinct[number], paired[number])
        for number, alignment in by_number.items()
    }
    msas = []
    for number in numbers.tolist():
        main, letters = unpaired[number], by_number[number].row_letters
        if not config.query_twice:
            main = main[letters[main] != letters[0]]
        if config.subsample_main:
            main = _subsample(main, limit, draws, config)
        msas.append(np.concatenate([query, paired[number], main[:limit]]))
    total = num_rows = max(map(len, msas))
    used_rows = np.arange(total)
    if config.used_rows is not None and total > config.used_rows:
        num_rows = config.used_rows
        used_rows = np.sort(draws.subset(Purpose.USED_ROWS, used_rows, num_rows))
    plans = []
    for chain, number, msa in zip(chains.tolist(), numbers.tolist(), msas, strict=True):
        rows = np.pad(msa, (0, total - len(msa)), constant_values=-1)[used_rows]
        deletion_rows = np.append(-1, rows[1:])  # the query has no deletions
        table = LETTER_TYPES[ChainType(view.chain_type[chain])]
        depth = int(np.searchsorted(used_rows, len(msa)))
        alignment, profile_rows = by_number[number], distinct[number]
        plans.append(ChainRows(chain, alignment, table, rows, deletion_rows, profile_rows, depth))
    return RowPlan(tuple(plans), num_rows, int(np.searchsorted(used_rows, num_paired)))


def _subsample(
    rows: np.ndarray, limit: int, draws: SampleDraws, config: OpenFold3Config
) -> np.ndarray:
    if not len(rows) or not limit:
        return rows[:0]
    order, size = draws.permutation_and_size(Purpose.MAIN_ROWS, len(rows), 1)
    order = np.sort(order[: size if config.sorted_then_cut else min(size, limit)])
    subsample: np.ndarray = rows[order]
    return subsample


def _paired(
    alignments: dict[int, Alignment],
    numbers: np.ndarray,
    protein: np.ndarray,
    config: OpenFold3Config,
) -> dict[int, Integer[np.ndarray, " n"]]:
    """Paired rows of every alignment, -1 where it has no row in a pair; `numbers` are of chains."""
    rows = {}
    for number in sorted(np.unique(numbers[protein]).tolist(), key=lambda n: alignments[n].name):
        candidates = _rows_to_pair(alignments[number], config)
        if len(candidates):
            rows[number] = candidates
    if len(rows) < 2:
        return {number: np.zeros(0, np.int64) for number in alignments}
    species = []
    by_alignment = species_numbers([alignments[number] for number in rows])
    for row_species, number in zip(by_alignment, rows, strict=True):
        rows[number] = rows[number][_capped(row_species[rows[number]], config)]
        species.append(row_species[rows[number]])
    pairs = _pair_by_species(species, config)
    if len(pairs) > config.max_paired_rows:
        ranks = np.full([len(pairs), len(numbers)], -1)
        for number, index in zip(rows, pairs.T[..., None], strict=True):
            ranks[:, numbers == number] = np.where(index >= 0, index + 1, -1)
        pairs = pairs[_by_products(ranks, wrapped=config.wrapped_products)]
        pairs = pairs[: config.max_paired_rows]
    paired = {number: np.full(len(pairs), -1) for number in alignments}
    for index, (number, candidates) in zip(pairs.T, rows.items(), strict=True):
        paired[number] = np.append(candidates, -1)[index]
    return paired


def _rows_to_pair(alignment: Alignment, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Rows with species, without the query of each file."""
    parts = [alignment.rows_of(source)[1:] for source in config.pair_sources]
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    with_species: np.ndarray = rows[alignment.row_species[rows] >= 0]
    return with_species


def _capped(species: np.ndarray, config: OpenFold3Config) -> Integer[np.ndarray, " n"]:
    """Indices of the rows that may pair where a species has more than the limit."""
    if config.first_of_species:
        return np.flatnonzero(counts_before(species) < config.max_rows_of_species)
    return np.flatnonzero(np.bincount(species)[species] <= config.max_rows_of_species)


def _pair_by_species(
    species: Sequence[Integer[np.ndarray, " _"]], config: OpenFold3Config
) -> Integer[np.ndarray, "n r"]:
    """Rows of species that several of r alignments share, those of the most alignments first.

    Rows of a species pair in the order of the file; its remaining rows pair again among fewer
    alignments. -1 where an alignment has no row in a pair.
    """
    table = SpeciesRows.of(species)
    remaining = table.counts.T.copy()
    remaining[:, (remaining > 0).sum(0) < 2] = 0
    blocks = [np.zeros([0, len(remaining)], np.int64)]
    num_pairs = 0
    least = min(config.min_paired_chains, len(remaining))
    for num_alignments in range(len(remaining), least - 1, -1):
        shared = np.flatnonzero((remaining > 0).sum(0) == num_alignments)
        counts = remaining[:, shared]
        fewest = np.where(counts > 0, counts, np.iinfo(np.int64).max).min(0)
        block = np.where(np.repeat(counts, fewest, 1) > 0, np.repeat(shared, fewest), -1)
        blocks.append(block.T)
        remaining[:, shared] = np.where(counts > 0, counts - fewest, 0)
        num_pairs += block.shape[1]
        if num_pairs >= config.max_paired_rows:
            break
    paired = np.concatenate(blocks)
    return table.select(paired, np.stack([counts_before(column) for column in paired.T], 1))


def _by_products(rows: np.ndarray, *, wrapped: bool) -> Integer[np.ndarray, " n"]:
    """Order of paired rows: fewest gaps first, then the smallest product of row numbers."""
    if wrapped:
        with np.errstate(over="ignore"):
            product = np.abs(np.prod(rows, axis=1, dtype=np.int64))
    else:
        product = np.log(np.abs(rows)).sum(1)
    order: np.ndarray = np.lexsort([product, (rows == -1).sum(1)])
    return order

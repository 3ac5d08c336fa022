"""Which rows of the chains' alignments stand side by side in a Protenix sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.cells import (
    RowPlan,
    ShownRows,
    SpeciesRows,
    gap_rows,
    rows_not_among,
    species_numbers,
)
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.entry_view import ChainType, ProtenixView, numbers_within
from evofeed.loader.views.protenix.vocabulary import LETTERS
from evofeed.protein.alignment import GAP, Alignment


@dataclass(frozen=True, slots=True, eq=False)
class _ChainRows:
    """Rows of an alignment: those that pair, and the others without repetitions."""

    alignment: Alignment
    kind: int
    paired: Integer[np.ndarray, " P"]
    main: Integer[np.ndarray, " M"]
    codes: Integer[np.ndarray, " U"]
    """Number of every distinct row; equal where Protenix's codes are."""
    gaps: Bool[np.ndarray, " U"]
    """Distinct rows that are gaps alone."""

    def is_gaps(self, rows: Integer[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Which of these rows are gaps alone, as those of -1 are."""
        found: np.ndarray = (rows < 0) | self.gaps[self.alignment.row_letters[rows]]
        return found


def plan_rows(
    view: ProtenixView,
    chains: Sequence[int],
    alignments: Sequence[Alignment],
    config: ProtenixConfig,
) -> RowPlan:
    """The rows of these chains of a sample, which stand in Protenix's order.

    Paired rows come first, then the other rows of every chain, gaps below the shorter ones.
    """
    keys = [(int(view.chain_alignment[one]), int(view.chain_polymer[one])) for one in chains]
    proteins = {one for one, kind in keys if kind == ChainType.PROTEIN and one >= 0}
    pairs = len({alignments[one].query for one in proteins}) > 1
    once = {
        (one, kind): _chain_rows(alignments[one], kind, pairs, config)
        for one, kind in set(keys)
        if one >= 0
    }
    own = [once.get(key) for key in keys]
    which = _paired(own, config) if pairs else np.zeros([1, len(own)], np.int64)
    there = [
        (chain, one, np.where(mine >= 0, one.paired[mine], -1))
        for chain, one, mine in zip(chains, own, which.T, strict=True)
        if one is not None
    ]
    kept = np.ones(len(which), bool)
    if there:
        kept = ~np.all([one.is_gaps(rows) for _, one, rows in there], 0)
    kept = np.flatnonzero(kept)[: config.max_rows // 2]
    twice = config.query_twice and not pairs
    parts = []
    for chain, one, rows in there:
        rows, rest = rows[kept], one.main
        if not twice:
            rest = rows_not_among(one.alignment, rest, rows, one.codes)
        parts.append((chain, one, np.append(rows, rest[: config.max_rows - len(kept)])))
    total = max((len(rows) for _, _, rows in parts), default=len(kept) + twice)
    shown = []
    for chain, one, rows in parts:
        every = np.pad(rows, (0, total - len(rows)), constant_values=-1)
        filled = config.fill_with_query and one.kind != ChainType.PROTEIN
        letters = np.where(one.is_gaps(every), 0, every) if filled else every
        table = LETTERS[one.kind]
        shown.append(ShownRows(chain, one.alignment, table, letters, every, one.main, len(rows)))
    return RowPlan(tuple(shown), total, len(kept))


def _chain_rows(alignment: Alignment, kind: int, pairs: bool, config: ProtenixConfig) -> _ChainRows:
    query = np.zeros(1, np.int64)
    files: dict[int, tuple[str, ...]] = {
        ChainType.PROTEIN: config.main_sources,
        ChainType.RNA: config.rna_sources,
    }
    sources = files.get(kind, ())
    if alignment.num_columns < config.min_columns:
        sources, pairs = (), False
    main = alignment.rows_of(*sources)
    if kind == ChainType.RNA:
        main = main[: config.max_rna_rows]
    main = alignment.first_of_equal(main) if len(main) else query
    paired = query
    if pairs and kind == ChainType.PROTEIN:
        found = alignment.first_of_equal(alignment.rows_of(*config.pair_sources))
        paired = found if len(found) else query
    return _ChainRows(alignment, kind, paired, main, *_code_rows(alignment, LETTERS[kind]))


def _code_rows(alignment: Alignment, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of distinct rows by their codes, and which rows are gaps alone."""
    letters = alignment.letters
    numbers = np.arange(len(letters))
    present = np.bincount(letters.ravel(), minlength=GAP + 1) > 0
    codes = table[np.flatnonzero(present)]
    if len(np.unique(codes)) < len(codes):
        text, width = table[letters].tobytes(), letters.shape[1]
        first: dict[bytes, int] = {}
        for row in range(len(letters)):
            numbers[row] = first.setdefault(text[row * width : (row + 1) * width], row)
    return numbers, gap_rows(alignment)


def _paired(
    chains: Sequence[_ChainRows | None], config: ProtenixConfig
) -> Integer[np.ndarray, "P c"]:
    """Which of its paired rows every chain has, the query first; -1 for none.

    Species of most chains come first, then those that come first in the chains.
    """
    once = {id(one): one for one in chains if one is not None}
    numbers = species_numbers([one.alignment for one in once.values()])
    none = np.zeros(0, np.int64)
    species, orders = {id(None): none}, {id(None): none}
    for every, (key, one) in zip(numbers, once.items(), strict=True):
        species[key] = every[one.paired]
        orders[key] = _order(species[key], config)
    table = SpeciesRows.of(*([one[id(chain)] for chain in chains] for one in (species, orders)))
    has = table.counts > 0
    shared = has.sum(1)
    fewest = np.where(has, table.counts, config.max_rows_of_species).min(1)
    fewest = np.minimum(fewest, config.max_rows_of_species)
    order = np.argsort(has.argmax(1), kind="stable")
    blocks, total, limit = [np.zeros([1, len(chains)], np.int64)], 0, config.max_rows // 2
    for count in range(int(shared.max(initial=0)), 1, -1):
        own = order[shared[order] == count]
        which, rank = np.repeat(own, fewest[own]), numbers_within(fewest[own])
        block = table.taken(which[:, None], rank[:, None])
        blocks.append(block[ranked_pairs(block, config)])
        total += len(block)
        if total >= limit:
            break
    return np.concatenate(blocks)[:limit]


def _order(species: Integer[np.ndarray, " P"], config: ProtenixConfig) -> np.ndarray:
    """Rows by species, those without one first."""
    if not config.unstable_order:
        return np.argsort(species, kind="stable")
    # Protenix sorts objects, whose order among equals is another than that of numbers.
    order: np.ndarray = species.astype(object).argsort()
    return order


def ranked_pairs(
    block: Integer[np.ndarray, "n c"], config: ProtenixConfig
) -> Integer[np.ndarray, " n"]:
    """Order of pairs by the product of their row numbers."""
    if config.missing_ranks_first:
        rank = np.sum(np.log(np.abs(block.astype(np.float32)) + 1e-10), axis=1)
    else:
        logs = np.log(np.maximum(block, 1), dtype=np.float64)
        rank = logs.sum(1) / np.maximum((block >= 0).sum(1), 1)
    return np.argsort(rank, kind=None if config.unstable_order else "stable")

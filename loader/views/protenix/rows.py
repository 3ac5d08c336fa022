"""Rows of the chains' alignments in the MSA of a Protenix sample: paired, then unpaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.cells import (
    ChainRows,
    RowPlan,
    SpeciesRows,
    gap_rows,
    species_numbers,
    unpaired_rows,
)
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.entry_view import ChainType, ProtenixView, numbers_within
from evofeed.loader.views.protenix.vocabulary import LETTERS
from evofeed.protein.alignment import GAP, Alignment


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """Distinct rows of an alignment: those that may pair, and those of the main MSA."""

    alignment: Alignment
    kind: int
    paired: Integer[np.ndarray, " P"]
    main: Integer[np.ndarray, " M"]
    codes: Integer[np.ndarray, " U"]
    """Number of every distinct row; equal where Protenix's codes are."""
    gaps: Bool[np.ndarray, " U"]
    """Distinct rows of gaps alone."""

    def is_gaps(self, rows: Integer[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """True for rows of gaps alone, and for -1."""
        gaps: np.ndarray = (rows < 0) | self.gaps[self.alignment.row_letters[rows]]
        return gaps


def plan_rows(
    view: ProtenixView,
    chains: Sequence[int],
    alignments: Sequence[Alignment],
    config: ProtenixConfig,
) -> RowPlan:
    """The MSA rows of a sample, whose `chains` are in Protenix's order.

    Paired rows come first, then the other rows of every chain, with gaps below the shorter ones.
    """
    keys = [(int(view.chain_alignment[chain]), int(view.chain_polymer[chain])) for chain in chains]
    proteins = {row for row, kind in keys if kind == ChainType.PROTEIN and row >= 0}
    pairs = len({alignments[row].query for row in proteins}) > 1
    distinct = {
        (row, kind): _candidates(alignments[row], kind, pairs, config)
        for row, kind in set(keys)
        if row >= 0
    }
    candidates = [distinct.get(key) for key in keys]
    pairing = _paired(candidates, config) if pairs else np.zeros([1, len(keys)], np.int64)
    aligned = [
        (chain, source, np.where(index >= 0, source.paired[index], -1))
        for chain, source, index in zip(chains, candidates, pairing.T, strict=True)
        if source is not None
    ]
    not_empty = np.ones(len(pairing), bool)
    if aligned:
        not_empty = ~np.all([source.is_gaps(rows) for _, source, rows in aligned], 0)
    selected = np.flatnonzero(not_empty)[: config.max_rows // 2]
    twice = config.query_twice and not pairs
    msas = []
    for chain, source, rows in aligned:
        paired, main = rows[selected], source.main
        if not twice:
            main = unpaired_rows(source.alignment, main, paired, source.codes)
        msas.append((chain, source, np.append(paired, main[: config.max_rows - len(selected)])))
    total = max((len(msa) for _, _, msa in msas), default=len(selected) + twice)
    plans = []
    for chain, source, msa in msas:
        padded = np.pad(msa, (0, total - len(msa)), constant_values=-1)
        filled = config.fill_with_query and source.kind != ChainType.PROTEIN
        rows = np.where(source.is_gaps(padded), 0, padded) if filled else padded
        table = LETTERS[source.kind]
        plans.append(ChainRows(chain, source.alignment, table, rows, padded, source.main, len(msa)))
    return RowPlan(tuple(plans), total, len(selected))


def _candidates(
    alignment: Alignment, kind: int, pairs: bool, config: ProtenixConfig
) -> _Candidates:
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
        distinct = alignment.first_of_equal(alignment.rows_of(*config.pair_sources))
        paired = distinct if len(distinct) else query
    return _Candidates(alignment, kind, paired, main, *_code_rows(alignment, LETTERS[kind]))


def _code_rows(alignment: Alignment, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of distinct rows, equal where their codes are, and a mask of rows of gaps."""
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
    chains: Sequence[_Candidates | None], config: ProtenixConfig
) -> Integer[np.ndarray, "P c"]:
    """Index among each chain's `paired` rows in every pair, the query first; -1 for none.

    Species of the most chains come first, then those that come first in the chains.
    """
    distinct = {id(chain): chain for chain in chains if chain is not None}
    numbers = species_numbers([chain.alignment for chain in distinct.values()])
    empty = np.zeros(0, np.int64)
    species, orders = {id(None): empty}, {id(None): empty}
    for row_species, (key, chain) in zip(numbers, distinct.items(), strict=True):
        species[key] = row_species[chain.paired]
        orders[key] = _order(species[key], config)
    table = SpeciesRows.of(
        [species[id(chain)] for chain in chains], [orders[id(chain)] for chain in chains]
    )
    has_species = table.counts > 0
    num_chains = has_species.sum(1)
    fewest = np.where(has_species, table.counts, config.max_rows_of_species).min(1)
    fewest = np.minimum(fewest, config.max_rows_of_species)
    order = np.argsort(has_species.argmax(1), kind="stable")
    blocks, total, limit = [np.zeros([1, len(chains)], np.int64)], 0, config.max_rows // 2
    for count in range(int(num_chains.max(initial=0)), 1, -1):
        shared = order[num_chains[order] == count]
        number, rank = np.repeat(shared, fewest[shared]), numbers_within(fewest[shared])
        block = table.select(number[:, None], rank[:, None])
        blocks.append(block[ranked_pairs(block, config)])
        total += len(block)
        if total >= limit:
            break
    return np.concatenate(blocks)[:limit]


def _order(species: Integer[np.ndarray, " P"], config: ProtenixConfig) -> np.ndarray:
    """Order of rows by species, those without one first."""
    if not config.unstable_order:
        return np.argsort(species, kind="stable")
    # Protenix sorts objects, which numpy orders differently among equals than numbers.
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

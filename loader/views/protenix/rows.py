"""Which rows of the chains' alignments stand side by side in a Protenix sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.cells import gap_rows, rows_not_among, species_numbers
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.entry_view import ChainType, ProtenixView
from evofeed.loader.views.protenix.vocabulary import LETTERS, PROTEIN_LETTERS
from evofeed.protein.alignment import GAP, Alignment


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Rows of a sample's MSA: c chains with an alignment, S rows, the query first.

    A row of -1 is all gaps.
    """

    chains: Integer[np.ndarray, " c"]
    """Rows of the entry's chains."""
    rows: tuple[Integer[np.ndarray, " S"], ...]
    """Rows of every chain's alignment whose letters are shown."""
    deletions: tuple[Integer[np.ndarray, " S"], ...]
    """The same for deletions."""
    num_rows: int
    num_paired: int
    """Rows that belong together, the query counted in."""
    num_protein: int
    """Other rows of the deepest protein, 1 or more."""
    num_rna: int
    """Other rows of the deepest RNA, 1 or more."""
    main: tuple[Integer[np.ndarray, " _"], ...]
    """Rows of every chain before any was left out: those of the profile."""


@dataclass(frozen=True, slots=True, eq=False)
class _ChainRows:
    """Rows of one chain: those that pair, and the others without repetitions."""

    paired: Integer[np.ndarray, " P"]
    main: Integer[np.ndarray, " M"]
    codes: Integer[np.ndarray, " U"]
    """Number of every distinct row; equal where Protenix's codes are."""
    gaps: Bool[np.ndarray, " U"]
    """Distinct rows that are gaps alone."""


def plan_rows(
    view: ProtenixView,
    in_crop: Bool[np.ndarray, " C"],
    alignments: Sequence[Alignment],
    entities: Mapping[int, Sequence[int]],
    config: ProtenixConfig,
) -> RowPlan:
    """The rows of a sample.

    Entities and their chains stand in Protenix's order.
    """
    ordered = [chain for own in entities.values() for chain in own if in_crop[chain]]
    chains = np.array(ordered, np.int64)
    kinds = view.chain_polymer[chains]
    of = [int(view.chain_alignment[chain]) for chain in ordered]
    queries = {
        alignments[one].letters[alignments[one].row_letters[0]].tobytes()
        for one, kind in zip(of, kinds, strict=True)
        if kind == ChainType.PROTEIN and one >= 0
    }
    pairs = len(queries) > 1
    once: dict[tuple[int, int], _ChainRows] = {}
    for one, kind in zip(of, kinds.tolist(), strict=True):
        if one >= 0 and (one, kind) not in once:
            once[one, kind] = _chain_rows(alignments[one], kind, pairs, config)
    own = [once.get((one, kind)) for one, kind in zip(of, kinds.tolist(), strict=True)]
    paired = np.zeros([1, len(own)], np.int64)
    if pairs:
        paired = _paired([alignments[one] if one >= 0 else None for one in of], own, config)
    return _joined(view, chains, of, own, paired, alignments, pairs, config)


def letter_codes_of(kind: int) -> np.ndarray:
    """Protenix's codes of letters in a polymer of that kind."""
    return LETTERS.get(kind, PROTEIN_LETTERS)


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
    return _ChainRows(paired, main, *_code_rows(alignment, letter_codes_of(kind)))


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
    alignments: Sequence[Alignment | None],
    chains: Sequence[_ChainRows | None],
    config: ProtenixConfig,
) -> Integer[np.ndarray, "P c"]:
    """Which of its paired rows every chain has, the query first; -1 for none.

    Species of most chains come first, then those that come first in the chains.
    """
    used = {id(one): one for one in alignments if one is not None}
    numbers = dict(zip(used, species_numbers([*used.values()]), strict=True))
    size = 1 + max(int(one.max(initial=0)) for one in numbers.values())
    counts = np.zeros([size, len(chains)], np.int64)
    rows = [np.zeros(0, np.int64)] * len(chains)
    memo: dict[int, np.ndarray] = {}
    for number, (alignment, chain) in enumerate(zip(alignments, chains, strict=True)):
        if alignment is None or chain is None:
            continue
        if id(chain) not in memo:
            species = alignment.row_species[chain.paired]
            order = _order(species, config)
            memo[id(chain)] = order[species[order] >= 0]
        rows[number] = memo[id(chain)]
        own = numbers[id(alignment)][chain.paired]
        counts[:, number] = np.bincount(own[own >= 0], minlength=size)
    starts = np.cumsum(counts, 0) - counts
    has = counts > 0
    shared = has.sum(1)
    fewest = np.where(has, counts, config.max_rows_of_species).min(1)
    fewest = np.minimum(fewest, config.max_rows_of_species)
    order = np.argsort(has.argmax(1), kind="stable")
    blocks, total, limit = [np.zeros([1, len(chains)], np.int64)], 0, config.max_rows // 2
    for count in range(int(shared.max(initial=0)), 1, -1):
        species = order[shared[order] == count]
        if not len(species):
            continue
        which = np.repeat(species, fewest[species])
        rank = np.arange(len(which)) - np.repeat(
            np.cumsum(fewest[species]) - fewest[species], fewest[species]
        )
        block = np.full([len(which), len(chains)], -1, np.int64)
        for number, own in enumerate(rows):
            there = has[which, number]
            block[there, number] = own[starts[which[there], number] + rank[there]]
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


def _joined(
    view: ProtenixView,
    chains: np.ndarray,
    of: Sequence[int],
    own: Sequence[_ChainRows | None],
    paired: Integer[np.ndarray, "P c"],
    alignments: Sequence[Alignment],
    pairs: bool,
    config: ProtenixConfig,
) -> RowPlan:
    """Paired rows, then the other rows of every chain, gaps below the shorter ones."""
    every = np.ones(len(paired), bool)
    for number, chain in enumerate(own):
        if chain is not None:
            which = paired[:, number]
            letters = alignments[of[number]].row_letters[chain.paired[which]]
            every &= (which < 0) | chain.gaps[letters]
    paired = paired[~every] if len(own) and any(one is not None for one in own) else paired
    paired = paired[: config.max_rows // 2]
    other: list[np.ndarray] = []
    for number, chain in enumerate(own):
        rows = np.zeros(1, np.int64)
        if chain is not None:
            rows = chain.main
            if pairs or not config.query_twice:
                which = paired[:, number]
                pairs_of = np.where(which >= 0, chain.paired[which], -1)
                rows = rows_not_among(alignments[of[number]], rows, pairs_of, chain.codes)
        elif pairs or not config.query_twice:
            rows = rows[:0]
        other.append(rows[: config.max_rows - len(paired)])
    depth = max((len(rows) for rows in other), default=0)
    kinds = view.chain_polymer[chains]
    kept, shown, deleted, main = [], [], [], []
    for number, chain in enumerate(own):
        if chain is None:
            continue
        which = paired[:, number]
        rows = np.full(len(paired) + depth, -1, np.int64)
        rows[: len(paired)] = np.where(which >= 0, chain.paired[which], -1)
        rows[len(paired) : len(paired) + len(other[number])] = other[number]
        kept.append(number)
        deleted.append(rows)
        if config.fill_with_query and kinds[number] != ChainType.PROTEIN:
            letters = alignments[of[number]].row_letters[rows]
            rows = np.where((rows < 0) | chain.gaps[letters], 0, rows)
        shown.append(rows)
        main.append(chain.main)

    def deepest(kind: ChainType) -> int:
        sizes = [len(rows) for rows, one in zip(other, kinds, strict=True) if one == kind]
        return max([1, *sizes])

    return RowPlan(
        chains[kept],
        tuple(shown),
        tuple(deleted),
        len(paired) + depth,
        len(paired),
        deepest(ChainType.PROTEIN),
        deepest(ChainType.RNA),
        tuple(main),
    )

"""Rows of the chains' alignments that make the MSA of a Boltz sample: paired, then unpaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Int
from evofeed.loader.views.cells import (
    ChainRows,
    RowPlan,
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


def distinct_rows(alignment: Alignment, limit: int) -> Int[np.ndarray, " S"]:
    """The first of the rows with equal letters, insertions included and gaps ignored."""
    _, first = np.unique(alignment.row_gapless, return_index=True)
    return np.sort(first)[:limit]


def plan_rows(
    chains: Int[np.ndarray, " C"],
    alignments: Sequence[Alignment | None],
    num_rows: int | None,
    config: BoltzConfig,
) -> tuple[RowPlan, Bool[np.ndarray, "R C"]]:
    """The MSA rows of the chains of a crop, and a mask of those that are paired by species.

    Species of the most chains come first, then those that come first in the chains. Each has as
    many rows as in the chain with the most; other chains repeat theirs from the first. Chains
    without the species use their next unpaired row. The remaining unpaired rows follow, with gaps
    below those of shorter alignments. A chain without an alignment has its first row alone.
    `num_rows` is how many rows are needed; None for all.
    """
    limit = config.max_rows if num_rows is None else min(num_rows, config.max_rows)
    distinct, species = _distinct(alignments, config.max_rows)
    table = SpeciesRows.of(species)
    counts, order = table.counts, _pairing_order(table.counts, species)
    depths = counts[order].max(1, initial=0)
    max_pairs = max(min(config.max_pairs, limit), 1) - 1
    group, rank = np.repeat(order, depths)[:max_pairs], numbers_within(depths)[:max_pairs]
    has_species = counts[group] > 0
    paired_rows = table.select(group[:, None], rank[:, None] % np.maximum(counts[group], 1))
    unpaired = []
    for column, row_species in enumerate(species):
        available = np.arange(1, len(row_species))
        if not config.reused_rows:
            available = available[~np.isin(row_species[1:], order)]
        lacks = ~has_species[:, column]
        turn = np.cumsum(lacks) - 1
        substitutes = np.append(available, -1)[np.minimum(turn, len(available))]
        paired_rows[lacks, column] = substitutes[lacks]
        unpaired.append(available[np.count_nonzero(lacks) :])
    num_unpaired = max(min(max(map(len, unpaired)), limit - len(group) - 1), 0)
    indices = np.full([1 + len(group) + num_unpaired, len(chains)], -1, np.int64)
    indices[0], indices[1 : 1 + len(group)] = 0, paired_rows
    is_paired = np.zeros(indices.shape, bool)
    is_paired[0], is_paired[1 : 1 + len(group)] = True, has_species
    msas = []
    for column, (alignment, profile_rows) in enumerate(zip(alignments, distinct, strict=True)):
        indices[len(group) + 1 :, column][: len(unpaired[column])] = unpaired[column][:num_unpaired]
        if alignment is not None:
            index, depth = indices[:, column], len(profile_rows)
            rows = np.where(index >= 0, profile_rows[index], -1)
            deletion_rows = np.where(index == 0, rows, -1) if config.narrowed_deletions else rows
            chain = int(chains[column])
            msa = ChainRows(chain, alignment, CODES, rows, deletion_rows, profile_rows, depth)
            msas.append(msa)
    return RowPlan(tuple(msas), len(indices), 1 + len(group)), is_paired


def _distinct(
    alignments: Sequence[Alignment | None], limit: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Distinct rows of each chain, and their species.

    Species are numbered over all chains, -1 for none; a chain without an alignment has one row.
    """
    distinct = {id(alignment): alignment for alignment in alignments if alignment is not None}
    by_id = {id(None): (np.zeros(1, np.int64), np.full(1, -1))}
    numbers = species_numbers([*distinct.values()])
    for alignment, species in zip(distinct.values(), numbers, strict=True):
        rows = distinct_rows(alignment, limit)
        by_id[id(alignment)] = rows, species[rows]
    pairs = [by_id[id(alignment)] for alignment in alignments]
    return [rows for rows, _ in pairs], [species for _, species in pairs]


def _pairing_order(
    counts: Int[np.ndarray, "s C"], species: Sequence[Int[np.ndarray, " _"]]
) -> Int[np.ndarray, " p"]:
    """Species of two rows or more, those of the most chains first, then by first row."""
    numbers, first = np.unique(np.concatenate(species), return_index=True)
    by_row = numbers[np.argsort(first, kind="stable")]
    by_row = by_row[by_row >= 0]
    by_row = by_row[counts[by_row].sum(1) > 1]
    order: np.ndarray = by_row[np.argsort(-(counts[by_row] > 0).sum(1), kind="stable")]
    return order

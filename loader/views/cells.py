"""Rows of alignments: their species, which are there already, their cells at a sample's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, UInt8
from evofeed.loader.views.entry_view import joined_runs
from evofeed.protein.alignment import GAP, NUM_LETTERS, Alignment


def letter_table(
    first: int, letters: str, unknown: int, gap: int, alike: str = ""
) -> UInt8[np.ndarray, " 27"]:
    """Codes of the letters of an alignment: these from `first` on, `unknown` of all others.

    Of `alike` every other letter, from the first on, has the code of the one behind it.
    """
    table = np.full(NUM_LETTERS, unknown, np.uint8)
    for number, letter in enumerate(letters, first):
        table[ord(letter) - ord("A")] = number
    for odd, letter in zip(alike[::2], alike[1::2], strict=True):
        table[ord(odd) - ord("A")] = table[ord(letter) - ord("A")]
    table[GAP] = gap
    return table


def species_numbers(alignments: Sequence[Alignment]) -> list[Integer[np.ndarray, " S"]]:
    """A number for the species of each row, in the order of all names; -1 for none."""
    named = [np.array(one.species, np.str_) for one in alignments]
    names = np.unique(np.concatenate([np.zeros(0, "U1"), *named]))
    return [
        np.append(np.searchsorted(names, own), -1)[one.row_species]
        for own, one in zip(named, alignments, strict=True)
    ]


class SpeciesRows(NamedTuple):
    """Rows of r alignments by their species, s of them."""

    counts: Integer[np.ndarray, "s r"]
    """Rows of each species in each alignment."""
    rows: tuple[Integer[np.ndarray, " _"], ...]
    """Rows of each alignment that have a species, one species after the other."""

    @classmethod
    def of(
        cls,
        species: Sequence[Integer[np.ndarray, " _"]],
        orders: Sequence[Integer[np.ndarray, " _"]] | None = None,
    ) -> SpeciesRows:
        """Of the number of each row's species, -1 for none.

        `orders` sort the rows of each alignment by species; else rows of one keep their order.
        """
        size = 1 + max((int(one.max(initial=-1)) for one in species), default=-1)
        if orders is None:
            orders = [np.argsort(one, kind="stable") for one in species]
        counts = [np.bincount(one[one >= 0], minlength=size) for one in species]
        rows = [order[one[order] >= 0] for one, order in zip(species, orders, strict=True)]
        return cls(np.stack(counts, 1), tuple(rows))

    def taken(
        self, species: Integer[np.ndarray, "n _"], rank: Integer[np.ndarray, "n _"]
    ) -> Integer[np.ndarray, "n r"]:
        """The row of each alignment that is the `rank`-th of a species there; -1 for a species of
        -1, or where the alignment has none of it. Columns are those of alignments, or one of all.
        """
        taken = np.full([len(species), len(self.rows)], -1, np.int64)
        species, rank = (np.broadcast_to(one, taken.shape) for one in (species, rank))
        starts = np.cumsum(self.counts, 0) - self.counts
        for column, rows in enumerate(self.rows):
            mine = species[:, column]
            there = np.flatnonzero((mine >= 0) & (self.counts[mine, column] > 0))
            place = starts[mine[there], column] + rank[there, column]
            taken[there, column] = rows[place]
        return taken


class ShownRows(NamedTuple):
    """Rows of an alignment that a chain of a sample has, -1 for a row of gaps."""

    chain: int
    alignment: Alignment
    table: UInt8[np.ndarray, " 27"]
    """Codes of letters."""
    rows: Integer[np.ndarray, " S"]
    deleted: Integer[np.ndarray, " S"]
    """Rows whose deletions are shown."""
    every: Integer[np.ndarray, " _"]
    """Rows of the profile: the chain's own before any was drawn or left out."""
    depth: int
    """Rows up to the last one; those below are padding."""


class RowPlan(NamedTuple):
    """Rows of a sample's MSA, the query first."""

    shown: tuple[ShownRows, ...]
    """Of each chain with an alignment."""
    num_rows: int
    num_paired: int
    """Rows that belong together, the query counted in."""


def row_codes(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    table: UInt8[np.ndarray, " 27"],
) -> UInt8[np.ndarray, "S n"]:
    """Codes of the letters of these rows at these columns; gaps in a row of -1."""
    there = np.flatnonzero(rows >= 0)
    letters = alignment.letters.take(alignment.row_letters[rows[there]], 0).take(columns, 1)
    cells = np.full([len(rows), len(columns)], table[GAP], np.uint8)
    cells[there] = table[letters]
    return cells


def row_deletions(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    tokens: Integer[np.ndarray, " n"],
) -> Integer[np.ndarray, "d 3"]:
    """Place of the row, token and number of all deletions at these columns, i32."""
    there = np.flatnonzero(rows >= 0)
    starts = alignment.deletion_start[rows[there]]
    counts = alignment.deletion_start[rows[there] + 1] - starts
    entry = joined_runs(starts, counts)
    row, column = np.repeat(there, counts), alignment.deletion_column[entry]
    # A column may stand at several tokens: atoms of one residue.
    order = np.argsort(columns, kind="stable")
    first = np.searchsorted(columns[order], column)
    many = np.searchsorted(columns[order], column, side="right") - first
    token = tokens[order[joined_runs(first, many)]]
    number = np.repeat(alignment.deletion_count[entry], many)
    return np.stack([np.repeat(row, many), token, number], 1).astype(np.int32)


def fill_rows(
    msa: UInt8[np.ndarray, "S n"],
    chain: Integer[np.ndarray, " n"],
    columns: Integer[np.ndarray, " n"],
    shown: Iterable[ShownRows],
    profile: Float[np.ndarray, "n _"] | None = None,
) -> tuple[Integer[np.ndarray, "d 3"], Float[np.ndarray, " n"]]:
    """Deletions of chains' rows at the tokens' columns, and their means, of what has a profile.

    `msa` and `profile` hold what tokens of other chains have, and are written over.
    """
    mean = np.zeros(len(chain), np.float32)
    deletions = [np.zeros([0, 3], np.int32)]
    for one in shown:
        here = np.flatnonzero(chain == one.chain)
        at = columns[here]
        msa[:, here] = row_codes(one.alignment, one.rows, at, one.table)
        deletions.append(row_deletions(one.alignment, one.deleted, at, here))
        if profile is not None:
            profile[here], mean[here] = row_profile(
                one.alignment, one.every, at, one.table, profile.shape[1]
            )
    return np.concatenate(deletions), mean


def gap_rows(alignment: Alignment) -> Bool[np.ndarray, " U"]:
    """Which distinct rows are gaps alone."""
    gaps = np.zeros(len(alignment.letters), bool)
    maybe = np.flatnonzero(alignment.letters[:, 0] == GAP)
    gaps[maybe] = (alignment.letters[maybe] == GAP).all(1)
    return gaps


def rows_not_among(
    alignment: Alignment,
    rows: Integer[np.ndarray, " n"],
    paired: Integer[np.ndarray, " p"],
    codes: Integer[np.ndarray, " U"] | None = None,
) -> Integer[np.ndarray, " k"]:
    """Rows whose letters no paired row has; a paired one of -1 is all gaps.

    `codes` number the distinct rows, alike where they are the same to the project.
    """
    letters = alignment.row_letters
    codes = np.arange(len(alignment.letters)) if codes is None else codes
    drop = np.zeros(len(codes), bool)
    drop[codes[letters[paired[paired >= 0]]]] = True
    kept: np.ndarray = rows[~drop[codes[letters[rows]]]]
    if (paired < 0).any():
        kept = kept[~gap_rows(alignment)[letters[kept]]]
    return kept


def row_profile(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    table: UInt8[np.ndarray, " 27"],
    classes: int,
) -> tuple[Float[np.ndarray, "n {classes}"], Float[np.ndarray, " n"]]:
    """Share of each code, and the mean number of deletions, in these columns over these rows."""
    into = np.zeros([NUM_LETTERS, classes], np.int32)
    into[np.arange(NUM_LETTERS), table] = 1
    size = max(1, len(rows))
    counts = alignment.letter_counts(rows, columns) @ into
    return counts / size, alignment.deletion_sums(rows)[columns] / size

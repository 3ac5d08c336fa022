"""Rows of alignments: their species, duplicates, and their letters at a sample's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, UInt8
from evofeed.loader.views.entry_view import joined_runs
from evofeed.protein.alignment import GAP, NUM_LETTERS, Alignment


def letter_table(
    first: int, letters: str, unknown: int, gap: int, synonyms: str = ""
) -> UInt8[np.ndarray, " 27"]:
    """Code of every letter of an alignment: `letters` count from `first`, others are `unknown`.

    `synonyms` are pairs of letters: the first of a pair has the code of the second.
    """
    table = np.full(NUM_LETTERS, unknown, np.uint8)
    for code, letter in enumerate(letters, first):
        table[ord(letter) - ord("A")] = code
    for synonym, letter in zip(synonyms[::2], synonyms[1::2], strict=True):
        table[ord(synonym) - ord("A")] = table[ord(letter) - ord("A")]
    table[GAP] = gap
    return table


def species_numbers(alignments: Sequence[Alignment]) -> list[Integer[np.ndarray, " S"]]:
    """Number of each row's species among the sorted names of all alignments; -1 for none."""
    species_names = [np.array(alignment.species, np.str_) for alignment in alignments]
    names = np.unique(np.concatenate([np.zeros(0, "U1"), *species_names]))
    return [
        np.append(np.searchsorted(names, chain_names), -1)[alignment.row_species]
        for chain_names, alignment in zip(species_names, alignments, strict=True)
    ]


class SpeciesRows(NamedTuple):
    """Rows of r alignments grouped by species, s of them."""

    counts: Integer[np.ndarray, "s r"]
    """Rows of each species in each alignment."""
    rows: tuple[Integer[np.ndarray, " _"], ...]
    """Rows of each alignment that have a species, sorted by species."""

    @classmethod
    def of(
        cls,
        species: Sequence[Integer[np.ndarray, " _"]],
        orders: Sequence[Integer[np.ndarray, " _"]] | None = None,
    ) -> SpeciesRows:
        """Groups rows by species (-1 for none) in `orders`, by default those of a stable sort."""
        size = 1 + max((int(numbers.max(initial=-1)) for numbers in species), default=-1)
        if orders is None:
            orders = [np.argsort(numbers, kind="stable") for numbers in species]
        counts = [np.bincount(numbers[numbers >= 0], minlength=size) for numbers in species]
        rows = [order[numbers[order] >= 0] for numbers, order in zip(species, orders, strict=True)]
        return cls(np.stack(counts, 1), tuple(rows))

    def select(
        self, species: Integer[np.ndarray, "n _"], rank: Integer[np.ndarray, "n _"]
    ) -> Integer[np.ndarray, "n r"]:
        """The `rank`-th row of a species in each alignment; -1 if it has none or the species is -1.

        `species` and `rank` have a column for each alignment, or one for all.
        """
        selected = np.full([len(species), len(self.rows)], -1, np.int64)
        species, rank = (np.broadcast_to(column, selected.shape) for column in (species, rank))
        starts = np.cumsum(self.counts, 0) - self.counts
        for column, rows in enumerate(self.rows):
            number = species[:, column]
            present = np.flatnonzero((number >= 0) & (self.counts[number, column] > 0))
            offset = starts[number[present], column] + rank[present, column]
            selected[present, column] = rows[offset]
        return selected


class ChainRows(NamedTuple):
    """Rows of an alignment in the MSA of one chain of a sample, -1 for a row of gaps."""

    chain: int
    alignment: Alignment
    table: UInt8[np.ndarray, " 27"]
    """Codes of letters."""
    rows: Integer[np.ndarray, " S"]
    deletion_rows: Integer[np.ndarray, " S"]
    """Rows whose deletions the features contain."""
    profile_rows: Integer[np.ndarray, " _"]
    """Rows of the profile: those of the chain before subsampling."""
    depth: int
    """Number of rows; those below are padding."""


class RowPlan(NamedTuple):
    """Rows of a sample's MSA, the query first."""

    chains: tuple[ChainRows, ...]
    """Chains with an alignment."""
    num_rows: int
    num_paired: int
    """Paired rows, the query included."""


def row_codes(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    table: UInt8[np.ndarray, " 27"],
) -> UInt8[np.ndarray, "S n"]:
    """Codes of the letters of these rows at these columns; gaps in a row of -1."""
    aligned = np.flatnonzero(rows >= 0)
    letters = alignment.letters.take(alignment.row_letters[rows[aligned]], 0).take(columns, 1)
    codes = np.full([len(rows), len(columns)], table[GAP], np.uint8)
    codes[aligned] = table[letters]
    return codes


def row_deletions(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    tokens: Integer[np.ndarray, " n"],
) -> Integer[np.ndarray, "d 3"]:
    """Row index, token and count of every deletion at these columns, i32."""
    aligned = np.flatnonzero(rows >= 0)
    starts = alignment.deletion_start[rows[aligned]]
    counts = alignment.deletion_start[rows[aligned] + 1] - starts
    deletion = joined_runs(starts, counts)
    row, column = np.repeat(aligned, counts), alignment.deletion_column[deletion]
    # One column has several tokens where a residue is split into atoms.
    order = np.argsort(columns, kind="stable")
    first = np.searchsorted(columns[order], column)
    copies = np.searchsorted(columns[order], column, side="right") - first
    token = tokens[order[joined_runs(first, copies)]]
    deleted = np.repeat(alignment.deletion_count[deletion], copies)
    return np.stack([np.repeat(row, copies), token, deleted], 1).astype(np.int32)


def fill_rows(
    msa: UInt8[np.ndarray, "S n"],
    chain: Integer[np.ndarray, " n"],
    columns: Integer[np.ndarray, " n"],
    chains: Iterable[ChainRows],
    profile: Float[np.ndarray, "n _"] | None = None,
) -> tuple[Integer[np.ndarray, "d 3"], Float[np.ndarray, " n"]]:
    """Deletions by row and token, and their mean at each token where a profile is asked for.

    Writes the codes of the chains into `msa`, and their profiles into `profile`; tokens of other
    chains keep their values.
    """
    mean = np.zeros(len(chain), np.float32)
    deletions = [np.zeros([0, 3], np.int32)]
    for number, alignment, table, rows, deletion_rows, profile_rows, _ in chains:
        tokens = np.flatnonzero(chain == number)
        at_tokens = columns[tokens]
        msa[:, tokens] = row_codes(alignment, rows, at_tokens, table)
        deletions.append(row_deletions(alignment, deletion_rows, at_tokens, tokens))
        if profile is not None:
            profile[tokens], mean[tokens] = row_profile(
                alignment, profile_rows, at_tokens, table, profile.shape[1]
            )
    return np.concatenate(deletions), mean


def gap_rows(alignment: Alignment) -> Bool[np.ndarray, " U"]:
    """True for distinct rows of gaps alone."""
    gaps = np.zeros(len(alignment.letters), bool)
    candidates = np.flatnonzero(alignment.letters[:, 0] == GAP)
    gaps[candidates] = (alignment.letters[candidates] == GAP).all(1)
    return gaps


def unpaired_rows(
    alignment: Alignment,
    rows: Integer[np.ndarray, " n"],
    paired: Integer[np.ndarray, " p"],
    codes: Integer[np.ndarray, " U"] | None = None,
) -> Integer[np.ndarray, " k"]:
    """The rows whose letters differ from those of every paired row; -1 is a row of gaps.

    `codes` number the distinct rows, equal where the project's codes are equal.
    """
    letters = alignment.row_letters
    codes = np.arange(len(alignment.letters)) if codes is None else codes
    is_paired = np.zeros(len(codes), bool)
    is_paired[codes[letters[paired[paired >= 0]]]] = True
    unpaired: np.ndarray = rows[~is_paired[codes[letters[rows]]]]
    if (paired < 0).any():
        unpaired = unpaired[~gap_rows(alignment)[letters[unpaired]]]
    return unpaired


def row_profile(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    table: UInt8[np.ndarray, " 27"],
    classes: int,
) -> tuple[Float[np.ndarray, "n {classes}"], Float[np.ndarray, " n"]]:
    """Frequency of each code and mean number of deletions in these columns over these rows."""
    one_hot = np.zeros([NUM_LETTERS, classes], np.int32)
    one_hot[np.arange(NUM_LETTERS), table] = 1
    size = max(1, len(rows))
    counts = alignment.letter_counts(rows, columns) @ one_hot
    return counts / size, alignment.deletion_sums(rows)[columns] / size

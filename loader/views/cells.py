"""Cells of an alignment at the columns of a sample's tokens."""

from __future__ import annotations

import numpy as np

from evofeed.base.shapes import Float, Integer, UInt8
from evofeed.loader.views.entry_view import joined_runs
from evofeed.protein.alignment import GAP, NUM_LETTERS, Alignment


def row_codes(
    alignment: Alignment,
    rows: Integer[np.ndarray, " S"],
    columns: Integer[np.ndarray, " n"],
    table: UInt8[np.ndarray, " 27"] | None = None,
) -> UInt8[np.ndarray, "S n"]:
    """Letters of these rows at these columns, or their codes; gaps in a row of -1."""
    there = np.flatnonzero(rows >= 0)
    letters = alignment.letters.take(alignment.row_letters[rows[there]], 0).take(columns, 1)
    gap = GAP if table is None else table[GAP]
    cells = np.full([len(rows), len(columns)], gap, np.uint8)
    cells[there] = letters if table is None else table[letters]
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

"""The loops over every character of an alignment, compiled.

Each kernel returns a status instead of raising; the callers turn it into a
typed error with file and line. `no_type_check` keeps the shape checks of the
tests from wrapping what numba must read.
"""

from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

OK: Final = 0
NO_HEADER: Final = 1
BAD_LETTER: Final = 2
ROW_LENGTH: Final = 3

# Classes of a byte in an a3m table; anything above is the letter itself.
INVALID: Final = 0
SKIP: Final = 1
INSERTION: Final = 2

_SPACES = (32, 9, 11, 12)


@njit(cache=True, nogil=True)
@no_type_check
def _line(data: Any, start: Any) -> Any:
    """Trimmed start and end of a line, and where the next one begins."""
    n = data.size
    end = start
    while end < n and data[end] != 10 and data[end] != 13:
        end += 1
    after = end + 1
    while end > start and data[end - 1] in _SPACES:
        end -= 1
    while start < end and data[start] in _SPACES:
        start += 1
    return start, end, after


@njit(cache=True, nogil=True)
@no_type_check
def count_a3m(data: Any, table: Any) -> Any:
    """`(rows, columns of the first row, runs of insertions)`."""
    rows = 0
    columns = 0
    runs = 0
    at = 0
    while at < data.size:
        start, end, at = _line(data, at)
        if start == end or data[start] == 35:
            continue
        if data[start] == 62:
            rows += 1
            continue
        inside = False
        for i in range(start, end):
            kind = table[data[i]]
            if kind > INSERTION:
                inside = False
                if rows == 1:
                    columns += 1
            elif kind == INSERTION and not inside:
                inside = True
                runs += 1
    return rows, columns, runs


@njit(cache=True, nogil=True)
@no_type_check
def fill_a3m(
    data: Any, table: Any, letters: Any, names: Any, rows_at: Any, columns_at: Any, counts: Any
) -> Any:
    """Fill letters, name spans and deletions; `(status, byte, deletions, row, width)`.

    The length of a row is checked when it ends; a bad letter has the byte.
    """
    columns = letters.shape[1]
    row = -1
    width = 0
    pending = 0
    found = 0
    at = 0
    row_start = 0
    while at < data.size:
        start, end, at = _line(data, at)
        if start == end or data[start] == 35:
            continue
        if data[start] == 62:
            if row >= 0 and width != columns:
                return ROW_LENGTH, row_start, found, row, width
            row += 1
            names[row, 0] = start + 1
            names[row, 1] = end
            width = 0
            pending = 0
            row_start = start
            continue
        if row < 0:
            return NO_HEADER, start, found, row, width
        for i in range(start, end):
            kind = table[data[i]]
            if kind > INSERTION:
                if width < columns:
                    letters[row, width] = kind
                    if pending > 0:
                        rows_at[found] = row
                        columns_at[found] = width
                        counts[found] = pending
                        found += 1
                        pending = 0
                width += 1
            elif kind == INSERTION:
                pending += 1
            elif kind == INVALID:
                return BAD_LETTER, i, found, row, width
    if row >= 0 and width != columns:
        return ROW_LENGTH, row_start, found, row, width
    return OK, 0, found, row, width


@njit(cache=True, nogil=True)
@no_type_check
def split_lines(data: Any, spans: Any) -> Any:
    """Name and residue spans `[start, end, start, end]` of each line that is neither blank, markup
    nor `//`; `(status, byte, lines)`."""
    line = 0
    at = 0
    while at < data.size:
        start, end, at = _line(data, at)
        if start == end or data[start] == 35:
            continue
        if end - start >= 2 and data[start] == 47 and data[start + 1] == 47:
            continue
        middle = start
        while middle < end and data[middle] not in _SPACES:
            middle += 1
        word = middle
        while word < end and data[word] in _SPACES:
            word += 1
        for i in range(word, end):
            if data[i] in _SPACES:
                return BAD_LETTER, i, line
        if word == end:
            return NO_HEADER, start, line
        spans[line, 0] = start
        spans[line, 1] = middle
        spans[line, 2] = word
        spans[line, 3] = end
        line += 1
    return OK, 0, line


@njit(cache=True, nogil=True)
@no_type_check
def same_names(data: Any, spans: Any, rows: Any) -> Any:
    """True if the names of the first `rows` lines repeat, in order, to the end."""
    if rows == 0 or spans.shape[0] % rows != 0:
        return False
    for line in range(rows, spans.shape[0]):
        other = line % rows
        size = spans[line, 1] - spans[line, 0]
        if size != spans[other, 1] - spans[other, 0]:
            return False
        for i in range(size):
            if data[spans[line, 0] + i] != data[spans[other, 0] + i]:
                return False
    return True


@njit(cache=True, nogil=True)
@no_type_check
def fill_stockholm(
    data: Any,
    spans: Any,
    row_of: Any,
    column_of: Any,
    table: Any,
    inserted: Any,
    letters: Any,
    deletions: Any,
    clip: Any,
) -> Any:
    """Fill letters and, if `deletions` has room, deletions `[row, column, count]`.

    `column_of` maps a column of the file to the query's, -1 where the query has
    a gap; there `inserted` says what a byte is. Returns `(status, byte, deletions, row, width)`.
    """
    rows = letters.shape[0]
    width = np.zeros(rows, np.int64)
    pending = np.zeros(rows, np.int32)
    found = 0
    for line in range(spans.shape[0]):
        row = row_of[line]
        at = width[row]
        size = spans[line, 3] - spans[line, 2]
        if at + size > column_of.size:
            if not clip:
                return ROW_LENGTH, spans[line, 0], found, row, at + size
            size = column_of.size - at
        for i in range(spans[line, 2], spans[line, 2] + size):
            column = column_of[at]
            kind = table[data[i]] if column >= 0 else inserted[data[i]]
            at += 1
            if kind == INVALID:
                return BAD_LETTER, i, found, row, at
            if column >= 0:
                letters[row, column] = kind
                if pending[row] > 0:
                    if found < deletions.shape[0]:
                        deletions[found, 0] = row
                        deletions[found, 1] = column
                        deletions[found, 2] = pending[row]
                    found += 1
                    pending[row] = 0
            elif kind != 45:
                pending[row] += 1
        width[row] = at
    for row in range(rows):
        if width[row] != column_of.size:
            return ROW_LENGTH, -1, found, row, width[row]
    return OK, 0, found, 0, 0


@njit(cache=True, nogil=True)
@no_type_check
def encode(letters: Any, kept: Any, table: Any) -> Any:
    """Codes of the kept rows and how often each code occurs in each column."""
    columns = letters.shape[1]
    msa = np.empty((kept.size, columns), np.uint8)
    counts = np.zeros((columns, 22), np.int32)
    for row in range(kept.size):
        for column in range(columns):
            code = table[letters[kept[row], column]]
            msa[row, column] = code
            counts[column, code] += 1
    return msa, counts

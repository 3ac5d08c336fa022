"""Loops over every character of an alignment, compiled by numba.

Each kernel returns a status instead of raising; the callers turn it into a
typed error with file and line. `no_type_check` keeps the shape checks of the
tests from wrapping functions that numba must read.
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
    """Trimmed start and end of a line, and the start of the next one."""
    n = data.size
    end = start
    while end < n and data[end] != 10 and data[end] != 13:
        end += 1
    next_start = end + 1
    while end > start and data[end - 1] in _SPACES:
        end -= 1
    while start < end and data[start] in _SPACES:
        start += 1
    return start, end, next_start


@njit(cache=True, nogil=True)
@no_type_check
def count_a3m(data: Any, table: Any) -> Any:
    """`(rows, columns of the first row, runs of insertions)`."""
    rows = 0
    columns = 0
    runs = 0
    position = 0
    while position < data.size:
        start, end, position = _line(data, position)
        if start == end or data[start] == 35:
            continue
        if data[start] == 62:
            rows += 1
            continue
        in_insertion = False
        for i in range(start, end):
            kind = table[data[i]]
            if kind > INSERTION:
                in_insertion = False
                if rows == 1:
                    columns += 1
            elif kind == INSERTION and not in_insertion:
                in_insertion = True
                runs += 1
    return rows, columns, runs


@njit(cache=True, nogil=True)
@no_type_check
def fill_a3m(data: Any, table: Any, letters: Any, names: Any, deletions: Any) -> Any:
    """Fills letters, name spans and deletions `[row | column | count, K]`.

    Returns `(status, byte, num_deletions, row, width)`. The length of a row is checked at its
    end; `byte` is then that of its header.
    """
    columns = letters.shape[1]
    row = -1
    width = 0
    pending = 0
    num_deletions = 0
    position = 0
    row_start = 0
    while position < data.size:
        start, end, position = _line(data, position)
        if start == end or data[start] == 35:
            continue
        if data[start] == 62:
            if row >= 0 and width != columns:
                return ROW_LENGTH, row_start, num_deletions, row, width
            row += 1
            names[row, 0] = start + 1
            names[row, 1] = end
            width = 0
            pending = 0
            row_start = start
            continue
        if row < 0:
            return NO_HEADER, start, num_deletions, row, width
        for i in range(start, end):
            kind = table[data[i]]
            if kind > INSERTION:
                if width < columns:
                    letters[row, width] = kind
                    if pending > 0:
                        deletions[0, num_deletions] = row
                        deletions[1, num_deletions] = width
                        deletions[2, num_deletions] = pending
                        num_deletions += 1
                        pending = 0
                width += 1
            elif kind == INSERTION:
                pending += 1
            elif kind == INVALID:
                return BAD_LETTER, i, num_deletions, row, width
    if row >= 0 and width != columns:
        return ROW_LENGTH, row_start, num_deletions, row, width
    return OK, 0, num_deletions, row, width


@njit(cache=True, nogil=True)
@no_type_check
def split_lines(data: Any, spans: Any) -> Any:
    """Name and residue spans `[start, end, start, end]` of each line that is neither blank, markup
    nor `//`; `(status, byte, lines)`."""
    line = 0
    position = 0
    while position < data.size:
        start, end, position = _line(data, position)
        if start == end or data[start] == 35:
            continue
        if end - start >= 2 and data[start] == 47 and data[start + 1] == 47:
            continue
        name_end = start
        while name_end < end and data[name_end] not in _SPACES:
            name_end += 1
        residues = name_end
        while residues < end and data[residues] in _SPACES:
            residues += 1
        for i in range(residues, end):
            if data[i] in _SPACES:
                return BAD_LETTER, i, line
        if residues == end:
            return NO_HEADER, start, line
        spans[line, 0] = start
        spans[line, 1] = name_end
        spans[line, 2] = residues
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
        row = line % rows
        size = spans[line, 1] - spans[line, 0]
        if size != spans[row, 1] - spans[row, 0]:
            return False
        for i in range(size):
            if data[spans[line, 0] + i] != data[spans[row, 0] + i]:
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
    """Fills letters and, as far as they fit, `deletions` `[row, column, count]`.

    `column_of` maps a column of the file to the query's, -1 where the query has
    a gap; there `inserted` is the table of bytes. Returns
    `(status, byte, num_deletions, row, width)`.
    """
    rows = letters.shape[0]
    width = np.zeros(rows, np.int64)
    pending = np.zeros(rows, np.int32)
    num_deletions = 0
    for line in range(spans.shape[0]):
        row = row_of[line]
        position = width[row]
        size = spans[line, 3] - spans[line, 2]
        if position + size > column_of.size:
            if not clip:
                return ROW_LENGTH, spans[line, 0], num_deletions, row, position + size
            size = column_of.size - position
        for i in range(spans[line, 2], spans[line, 2] + size):
            column = column_of[position]
            kind = table[data[i]] if column >= 0 else inserted[data[i]]
            position += 1
            if kind == INVALID:
                return BAD_LETTER, i, num_deletions, row, position
            if column >= 0:
                letters[row, column] = kind
                if pending[row] > 0:
                    if num_deletions < deletions.shape[0]:
                        deletions[num_deletions, 0] = row
                        deletions[num_deletions, 1] = column
                        deletions[num_deletions, 2] = pending[row]
                    num_deletions += 1
                    pending[row] = 0
            elif kind != 45:
                pending[row] += 1
        width[row] = position
    for row in range(rows):
        if width[row] != column_of.size:
            return ROW_LENGTH, -1, num_deletions, row, width[row]
    return OK, 0, num_deletions, 0, 0


@njit(cache=True, nogil=True)
@no_type_check
def encode(letters: Any, selected: Any, table: Any) -> Any:
    """Codes of the selected rows, and the count of each code in each column."""
    columns = letters.shape[1]
    msa = np.empty((selected.size, columns), np.uint8)
    counts = np.zeros((columns, 22), np.int32)
    for row in range(selected.size):
        for column in range(columns):
            code = table[letters[selected[row], column]]
            msa[row, column] = code
            counts[column, code] += 1
    return msa, counts

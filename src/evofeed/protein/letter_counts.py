"""Counts of each letter in columns of an alignment, compiled."""

from __future__ import annotations

from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

_NUM_LETTERS: Final = 27


@njit(cache=True, nogil=True)
@no_type_check
def count_letters(letters: Any, rows: Any, columns: Any) -> Any:
    """`i32[columns, 27]` of letters `u8[rows, columns]`, codes 0 to 26."""
    counts = np.zeros((len(columns), _NUM_LETTERS), np.int32)
    for row in rows:
        for column in range(len(columns)):
            counts[column, letters[row, columns[column]]] += 1
    return counts

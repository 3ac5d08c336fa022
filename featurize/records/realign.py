"""Pairwise alignment of a hit's sequence to its structure's, with gaps as kalign 3 places them.

Global alignment with affine gaps in linear memory (Hirschberg 1975; Myers and Miller 1988), the
scores of kalign 3: CorBLOSUM66 (Hess et al. 2016, BMC Bioinformatics 17:189), 5.5 for opening a
gap, 2 for each further letter, 1 at the ends. Among equally good alignments, the result depends on
where sequences are divided: the shorter one in the middle, the other at the best position, of
nearly equal ones the one closest to its middle. Tests compare the result with the program.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Int

_OPEN: Final = np.float32(5.5)
_EXTEND: Final = np.float32(2.0)
_AT_END: Final = np.float32(1.0)
_NEVER: Final = np.float32(np.finfo(np.float32).min)

# States of a column, a being the shorter sequence: a pair of letters, or one of b or a alone.
_PAIR: Final = 0
_B_ALONE: Final = 1
_A_ALONE: Final = 2
_JOINS: Final = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [2, 2], [2, 0]])
"""States of the first part's last column and the second's first one, in the order tried."""


def aligned_positions(old: str, new: str) -> Int[np.ndarray, " P"]:
    """Position in `new` of each letter of `old`, -1 where it has none.

    Letters other than the 20 amino acids, B and Z count as X. Time grows with the product of the
    lengths, memory with their sum.
    """
    letters, scores = _scores()
    a, b = _codes(old, letters), _codes(new, letters)
    shorter = len(a) < len(b)
    pairs: Int[np.ndarray, " S"] = _align(*((a, b) if shorter else (b, a)), scores)
    if shorter:
        return pairs
    positions = np.full(len(a), -1, np.int64)
    aligned = np.flatnonzero(pairs >= 0)
    positions[pairs[aligned]] = aligned
    return positions


def _codes(sequence: str, letters: str) -> Int[np.ndarray, " L"]:
    table = np.full(256, letters.index("X"), np.int64)
    table[np.frombuffer(letters.encode(), np.uint8)] = np.arange(len(letters))
    return table[np.frombuffer(sequence.encode("ascii", "replace"), np.uint8)]


@functools.cache
def _scores() -> tuple[str, Float[np.ndarray, "23 23"]]:
    """The letters of CorBLOSUM66 and its matrix of scores."""
    _, letters, *rows = Path(__file__).with_name("corblosum66.txt").read_text().splitlines()
    scores = np.array([row.split()[1:] for row in rows], np.float32)
    return "".join(letters.split()), scores


@njit(cache=True, nogil=True)
@no_type_check
def _align(a: Any, b: Any, scores: Any) -> Any:
    """Position in b of each letter of a, -1 for a gap; a is not the longer one."""
    pairs = np.full(a.size + 2, 0, np.int64)  # counted from 1
    bounds = np.empty((2 * a.size + 4, 6), np.int64)  # of parts that are still to be divided
    bounds[0] = 0, a.size, 0, b.size, _PAIR, _PAIR
    num = 1
    while num:
        num -= 1
        a0, a1, b0, b1, first, last = bounds[num]
        if a0 >= a1 or b0 >= b1:
            continue
        mid = a0 + (a1 - a0) // 2
        at_start, at_end = b0 == 0, b1 == b.size
        front = _best(a[a0:mid], b[b0:b1], first, at_start, at_end, scores)
        rear = _best(a[mid:a1][::-1], b[b0:b1][::-1], last, at_end, at_start, scores)
        join, before, after = _join(front, rear, at_start, at_end)
        join += b0
        if before == _PAIR:
            pairs[mid] = join
        if after == _PAIR:
            pairs[mid + 1] = join + 1
        left = mid - (before != _B_ALONE), join - (before != _A_ALONE)
        right = mid + (after != _B_ALONE), join + (after != _A_ALONE)
        bounds[num] = a0, left[0], b0, left[1], first, before
        bounds[num + 1] = right[0], a1, right[1], b1, after, last
        num += 2
    return pairs[1:-1] - 1


@njit(cache=True, nogil=True)
@no_type_check
def _best(a: Any, b: Any, first: Any, at_start: Any, at_end: Any, scores: Any) -> Any:
    """The best score of all of a with the first 0, 1, ... letters of b, by the last state.

    `first` is the state of the column before. `at_start` and `at_end`: b begins or ends here,
    where letters of a alone, and those of b before all of a, cost less.
    """
    best = np.full((3, b.size + 1), _NEVER, np.float32)
    best[first, 0] = np.float32(0)
    begin_open, begin_extend = (_AT_END, _AT_END) if at_start else (_OPEN, _EXTEND)
    end_open, end_extend = (_AT_END, _AT_END) if at_end else (_OPEN, _EXTEND)
    for j in range(1, b.size):
        opened = best[_PAIR, j - 1] - begin_open
        best[_B_ALONE, j] = max(best[_B_ALONE, j - 1] - begin_extend, opened)
    for letter in a:
        pair, b_alone, a_alone = best[:, 0]
        best[_PAIR, 0] = best[_B_ALONE, 0] = _NEVER
        best[_A_ALONE, 0] = max(a_alone - begin_extend, pair - begin_open)
        for j in range(1, b.size + 1):
            before = max(pair, b_alone - _OPEN, a_alone - _OPEN)
            pair, b_alone, a_alone = best[:, j]
            best[_PAIR, j] = before + scores[letter, b[j - 1]]
            if j < b.size:
                opened = best[_PAIR, j - 1] - _OPEN
                best[_B_ALONE, j] = max(best[_B_ALONE, j - 1] - _EXTEND, opened)
                best[_A_ALONE, j] = max(a_alone - _EXTEND, pair - _OPEN)
            else:
                best[_B_ALONE, j] = _NEVER
                best[_A_ALONE, j] = max(a_alone - end_extend, pair - end_open)
    return best


@njit(cache=True, nogil=True)
@no_type_check
def _join(front: Any, rear: Any, at_start: Any, at_end: Any) -> Any:
    """Position in b where two halves join at the best score, and the states of both columns."""
    size = front.shape[1] - 1
    top = _NEVER
    join = 0, _PAIR, _PAIR
    for i in range(size + 1):
        offset = np.float32(abs(np.float32(size) / np.float32(2) - np.float32(i)))
        offset /= np.float32(1000)
        for index in range(len(_JOINS)):
            before, after = _JOINS[index]
            if i == size and after != _A_ALONE:
                continue
            score = front[before, i] + rear[after, size - i]
            if before == after == _A_ALONE:
                score -= _AT_END if (at_end if i == size else at_start) else _EXTEND
            elif before != after:
                score -= _OPEN
            score -= offset
            if score > top:
                top = score
                join = i, before, after
    return join

"""Residues that are seen, placed on the full sequence that a file gives.

mmCIF numbers its residues along the sequence; legacy PDB files (SEQRES) and mmCIF files
without `label_seq_id` do not. There the residues are aligned: every one seen goes to one
position, in order, and a step of the author's numbers is a hint of how many are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Int

_SAME: Final = 4
"""Score of a residue on a position of its own name."""
_OTHER: Final = -6
"""Of one on a position of another name."""
_JUMP: Final = -5
"""Of two residues further apart, or nearer, than their numbers say."""
_LEFT_OUT: Final = -7
"""Of a residue that gets no position."""
_MAX_CELLS: Final = 200_000_000
"""Residues seen times positions: 2 bytes each. A chain of legacy PDB has up to 9,999."""
_FITS: Final = 0.8
"""Share of the residues seen that must be where the sequence has them, or it is not believed."""
_NEVER: Final = -(1 << 30)


Residue = tuple[int, str, str]
"""Author's number, insertion code, name."""


def place_on_sequence(
    seen: Sequence[Residue], sequence: Sequence[str], unseen: Sequence[Residue] = ()
) -> Int[np.ndarray, " R"] | None:
    """Position in the sequence of each residue seen, -1 for none; None if it is too long.

    Args:
        unseen: residues that the file lists as missing; together with those seen they are
            the sequence, if they fit it in order of their numbers.

    Else, of all placements in order, the one with the best sum: names that agree, and numbers
    that step as positions do. The first of equals.
    """
    both = sorted([*seen, *unseen], key=lambda residue: residue[:2])
    if len(both) == len(sequence) and [name for _, _, name in both] == list(sequence):
        place = {residue[:2]: position for position, residue in enumerate(both)}
        found = np.array([place[residue[:2]] for residue in seen], np.int64)
        if (np.diff(found) > 0).all():
            return found
    return _best_placement([n for _, _, n in seen], [n for n, _, _ in seen], sequence)


def _best_placement(
    names: Sequence[str], numbers: Sequence[int], sequence: Sequence[str]
) -> Int[np.ndarray, " R"] | None:
    codes = {name: code for code, name in enumerate(dict.fromkeys([*sequence, *names]))}
    seen = np.array([codes[name] for name in names], np.int32)
    full = np.array([codes[name] for name in sequence], np.int32)
    steps = np.diff(np.array(numbers, np.int64), prepend=numbers[0] if len(numbers) else 0)
    steps = np.where(steps == 0, 1, np.clip(steps, -1, len(sequence) + 1)).astype(np.int32)
    found: np.ndarray | None = _by_numbers(seen, np.asarray(numbers, np.int64), steps, full)
    if found is None and len(seen) * len(full) <= _MAX_CELLS:
        found = align_residues(seen, steps, full)
    return found


def _by_numbers(seen: Any, numbers: Any, steps: Any, full: Any) -> Any:
    """A placement by numbers alone: the one that counts from 1, else the first."""
    if len(seen) == 0 or (steps[1:] < 1).any() or (np.diff(numbers) == 0).any():
        return None
    index = numbers - numbers[0]
    room = len(full) - int(index[-1])
    starts = sorted(range(max(room, 0)), key=lambda start: start != int(numbers[0]) - 1)
    fits = (start for start in starts if np.array_equal(full[index + start], seen))
    start = next(fits, None)
    return None if start is None else index + start


@njit(cache=True, nogil=True)
@no_type_check
def align_residues(seen: Any, steps: Any, full: Any) -> Any:
    """Position of each residue, -1 for none, by dynamic programming over residue and position."""
    n, m = seen.size, full.size
    # What led to residue i on position j: 0 the start, 1 a step as the numbers say, 2 a jump.
    trace = np.zeros((n, m), np.int8)
    # What led to the best with residue i on j or before: 0 on j, 1 before j, 2 i is left out.
    choice = np.zeros((n + 1, m + 1), np.int8)
    before = np.zeros(m + 1, np.int64)  # best of the residues before i within positions < j
    placed = np.full(m, _NEVER, np.int64)  # best with residue i - 1 on j
    for i in range(n):
        now = np.full(m, _NEVER, np.int64)
        best = np.empty(m + 1, np.int64)
        best[0] = before[0] + _LEFT_OUT
        choice[i + 1, 0] = 2
        for j in range(m):
            score = _SAME if seen[i] == full[j] else _OTHER
            if i == 0:
                now[j] = score
                trace[i, j] = 0
            else:
                now[j] = before[j] + _JUMP + score
                trace[i, j] = 2
                k = j - steps[i]
                if steps[i] > 0 and k >= 0 and placed[k] + score >= now[j]:
                    now[j] = placed[k] + score
                    trace[i, j] = 1
            best[j + 1] = now[j]
            choice[i + 1, j + 1] = 0
            if best[j] >= best[j + 1]:
                best[j + 1] = best[j]
                choice[i + 1, j + 1] = 1
            if before[j + 1] + _LEFT_OUT > best[j + 1]:
                best[j + 1] = before[j + 1] + _LEFT_OUT
                choice[i + 1, j + 1] = 2
        before = best
        placed = now
    where = np.full(n, -1, np.int64)
    i, j = n - 1, m
    on = False  # whether residue i is known to be on position j
    while i >= 0:
        if not on:
            while choice[i + 1, j] == 1:
                j -= 1
            if choice[i + 1, j] == 2:
                i -= 1
                continue
            j -= 1
        where[i] = j
        on = trace[i, j] == 1
        if on:
            j -= steps[i]
        i -= 1
    return where


def fits(placed: Int[np.ndarray, " R"], seen: Sequence[str], sequence: Sequence[str]) -> bool:
    """Whether most residues seen are where the sequence has them, so that both are one chain."""
    same = sum(at >= 0 and sequence[at] == name for at, name in zip(placed, seen, strict=True))
    return bool(same >= _FITS * len(seen))

"""Residues that are seen, placed on the full sequence that a file gives.

mmCIF numbers its residues along the sequence; legacy PDB files (SEQRES) and mmCIF files
without `label_seq_id` do not. There the residues are aligned: every one seen goes to one
position, in order, and a step of the author's numbers is a hint of how many are missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Int

_SAME: Final = 4
"""Score of a residue on a position of its own name."""
_OTHER: Final = -6
"""Of one on a position of another name."""
_JUMP: Final = -3
"""Of two residues further apart than their numbers say."""
_LEFT_OUT: Final = -6
"""Of one that gets no position."""
_STEP: Final = re.compile(r"(\d+)([MID])")
_MAX_CELLS: Final = 200_000_000
"""Residues seen times positions, a byte each. A chain of legacy PDB has up to 9,999."""
_FITS: Final = 0.8
"""Share of the residues seen that must be where the sequence has them, or it is not believed."""

Residue = tuple[int, str, str]
"""Author's number, insertion code, name."""


def place_on_sequence(
    seen: Sequence[Residue], sequence: Sequence[str], unseen: Sequence[Residue] = ()
) -> Int[np.ndarray, " R"] | None:
    """Position in the sequence of each residue seen, -1 for none; None if it is too long.
    Together with those `unseen`, which the file lists as missing, they are the sequence if they
    fit it in order of their numbers.

    Else, in order, where names agree and numbers step as positions do; else by an alignment of the
    names with gaps where numbers are left out.
    """
    both = sorted([*seen, *unseen], key=lambda residue: residue[:2])
    if len(both) == len(sequence) and [name for _, _, name in both] == list(sequence):
        place = {residue[:2]: position for position, residue in enumerate(both)}
        found = np.array([place[residue[:2]] for residue in seen], np.int64)
        if (np.diff(found) > 0).all():
            return found
    names, numbers = [name for _, _, name in seen], [number for number, _, _ in seen]
    by_numbers = _by_numbers(names, numbers, sequence)
    return _aligned(names, numbers, sequence) if by_numbers is None else by_numbers


def _by_numbers(
    names: Sequence[str], numbers: Sequence[int], sequence: Sequence[str]
) -> Int[np.ndarray, " R"] | None:
    """A placement by numbers alone: the one that counts from 1, else the first; None if none."""
    index = np.array(numbers, np.int64) - (numbers[0] if numbers else 0)
    if not len(index) or (np.diff(index) < 1).any() or index[-1] >= len(sequence):
        return None
    full, seen = np.array(sequence), np.array(names)
    starts = range(len(full) - int(index[-1]))
    for start in sorted(starts, key=lambda start: start != numbers[0] - 1):
        if np.array_equal(full[index + start], seen):
            return index + start
    return None


def _aligned(
    names: Sequence[str], numbers: Sequence[int], sequence: Sequence[str]
) -> Int[np.ndarray, " R"] | None:
    """gemmi's alignment of names; gaps cost nothing where a number is left out."""
    import gemmi

    if len(names) * len(sequence) > _MAX_CELLS:
        return None
    scoring = gemmi.AlignmentScoring()
    scoring.match, scoring.mismatch, scoring.gapo = _SAME, _OTHER, _LEFT_OUT
    joined = np.diff(np.array(numbers, np.int64)) <= 1
    gaps = [0, *np.where(joined, _JUMP, 0).tolist(), 0][: len(names) + 1]
    steps = gemmi.align_string_sequences([*sequence], [*names], gaps, scoring).cigar_str()
    found = np.full(len(names), -1, np.int64)
    position = residue = 0
    for count, kind in ((int(one), kind) for one, kind in _STEP.findall(steps)):
        if kind == "M":
            found[residue : residue + count] = np.arange(position, position + count)
        position += 0 if kind == "D" else count
        residue += 0 if kind == "I" else count
    return found


def fits(placed: Int[np.ndarray, " R"], seen: Sequence[str], sequence: Sequence[str]) -> bool:
    """Whether most residues seen are where the sequence has them, so that both are one chain."""
    same = sum(at >= 0 and sequence[at] == name for at, name in zip(placed, seen, strict=True))
    return bool(same >= _FITS * len(seen))

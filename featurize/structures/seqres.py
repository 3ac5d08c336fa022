"""Placement of the observed residues on the full sequence of a file.

mmCIF numbers its residues along the sequence; legacy PDB files (SEQRES) and mmCIF files
without `label_seq_id` do not. There the residues are aligned: every observed one gets one
position, in order, and a step of the author's numbers hints at the number of missing ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Int

_MATCH: Final = 4
"""Score of a residue at a position with the same name."""
_MISMATCH: Final = -6
"""Score of a residue at a position with another name."""
_GAP: Final = -3
"""Score of a gap between residues with consecutive numbers."""
_UNPLACED: Final = -6
"""Score of a residue without a position."""
_CIGAR_STEP: Final = re.compile(r"(\d+)([MID])")
_MAX_CELLS: Final = 200_000_000
"""Observed residues times positions, a byte each. A chain of legacy PDB has up to 9,999."""
_MIN_MATCHES: Final = 0.8
"""Share of the observed residues that must match the sequence, or it is not used."""

Residue = tuple[int, str, str]
"""Author's number, insertion code, name."""


def place_on_sequence(
    observed: Sequence[Residue], sequence: Sequence[str], missing: Sequence[Residue] = ()
) -> Int[np.ndarray, " R"] | None:
    """Position in the sequence of each observed residue, -1 for none; None if it is too long.

    If the observed residues and those the file lists as `missing`, ordered by number, are the
    sequence, these are the positions. Else, the first at which all names agree while numbers
    step as positions do; else those of an alignment of the names with gaps where numbers are
    skipped.
    """
    residues = sorted([*observed, *missing], key=lambda residue: residue[:2])
    if [name for _, _, name in residues] == list(sequence):
        position_of = {residue[:2]: position for position, residue in enumerate(residues)}
        positions = np.array([position_of[residue[:2]] for residue in observed], np.int64)
        if (np.diff(positions) > 0).all():
            return positions
    names, numbers = [name for _, _, name in observed], [number for number, _, _ in observed]
    by_numbers = _by_numbers(names, numbers, sequence)
    return _aligned(names, numbers, sequence) if by_numbers is None else by_numbers


def _by_numbers(
    names: Sequence[str], numbers: Sequence[int], sequence: Sequence[str]
) -> Int[np.ndarray, " R"] | None:
    """Positions by numbers, if all names agree: counted from 1, else from the first start that
    fits."""
    index = np.array(numbers, np.int64) - (numbers[0] if numbers else 0)
    if not len(index) or (np.diff(index) < 1).any() or index[-1] >= len(sequence):
        return None
    full, observed = np.array(sequence), np.array(names)
    starts = range(len(full) - int(index[-1]))
    for start in sorted(starts, key=lambda start: start != numbers[0] - 1):
        if np.array_equal(full[index + start], observed):
            return index + start
    return None


def _aligned(
    names: Sequence[str], numbers: Sequence[int], sequence: Sequence[str]
) -> Int[np.ndarray, " R"] | None:
    """Positions by gemmi's alignment of names; gaps cost nothing where a number is skipped."""
    import gemmi

    if len(names) * len(sequence) > _MAX_CELLS:
        return None
    scoring = gemmi.AlignmentScoring()
    scoring.match, scoring.mismatch, scoring.gapo = _MATCH, _MISMATCH, _UNPLACED
    consecutive = np.diff(np.array(numbers, np.int64)) <= 1
    gaps = [0, *np.where(consecutive, _GAP, 0).tolist(), 0][: len(names) + 1]
    cigar = gemmi.align_string_sequences([*sequence], [*names], gaps, scoring).cigar_str()
    positions = np.full(len(names), -1, np.int64)
    position = residue = 0
    for length, kind in _CIGAR_STEP.findall(cigar):
        count = int(length)
        if kind == "M":
            positions[residue : residue + count] = np.arange(position, position + count)
        position += 0 if kind == "D" else count
        residue += 0 if kind == "I" else count
    return positions


def matches_sequence(
    positions: Int[np.ndarray, " R"], names: Sequence[str], sequence: Sequence[str]
) -> bool:
    """True if most observed residues have the name of their position in the sequence."""
    matches = sum(i >= 0 and sequence[i] == name for i, name in zip(positions, names, strict=True))
    return bool(matches >= _MIN_MATCHES * len(names))

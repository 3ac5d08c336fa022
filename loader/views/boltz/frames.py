"""Three atoms of each token of a Boltz sample that carry its frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Int
from evofeed.loader.views.entry_view import ChainType, EntryView

_OFFSETS: Final = np.array([[0, 1, 2], [11, 7, 5], [10, 7, 5]])
"""N CA C of amino acids; C1' C3' C4' of RNA and of DNA: places in Boltz's lists of atoms."""
_RNA, _DNA, _LAST = 23, 28, 32
_UNKNOWN: Final = 22
_COSINE: Final = 0.9063
"""Of 25 degrees: frames nearer to a line are none."""


def frames(
    view: EntryView, crop: Int[np.ndarray, " N"], packed: Mapping[str, np.ndarray]
) -> tuple[Int[np.ndarray, "N 3"], Bool[np.ndarray, " N"]]:
    """Atoms of the crop, and whether they make a frame.

    Ligands' atoms have their two nearest resolved ones of the chain's crop, by the labels.
    """
    kind, code = packed["mol_type"], packed["res_type"]
    counts, coords, present = packed["atom_num"], packed["coords"], packed["present"]
    start = np.cumsum(counts) - counts
    nucleic = (kind == ChainType.DNA) | (kind == ChainType.RNA)
    residue = (kind == ChainType.PROTEIN) & (code > 1) & (code < _UNKNOWN)
    residue |= nucleic & (code >= _RNA) & (code <= _LAST)
    residue &= counts >= 3
    which = np.where(code >= _DNA, 2, np.where(code >= _RNA, 1, 0))
    atoms = np.where(residue[:, None], _OFFSETS[which], 0) + start[:, None]
    valid = residue & present[np.minimum(atoms, len(present) - 1)].all(1)
    chain = packed["asym_id"]
    for number in np.unique(chain[kind == ChainType.LIGAND]):
        rows = np.flatnonzero(chain == number)
        mine = slice(start[rows[0]], start[rows[-1]] + counts[rows[-1]])
        if mine.stop - mine.start < 3:
            continue
        first = _three_nearest(coords[mine], present[mine])
        atoms[rows] = first[:, [1, 0, 2]] + mine.start
        valid[rows] = present[atoms[rows]].all(1)
    points = coords[atoms]
    valid &= _apart(points[:, 1] - points[:, 0], points[:, 1] - points[:, 2])
    return atoms.astype(np.int32), valid


def _three_nearest(coords: np.ndarray, present: np.ndarray) -> np.ndarray:
    step = coords[:, None] - coords[None]
    step *= step
    distance = np.sqrt(step[..., 0] + step[..., 1] + step[..., 2])
    distance[~(present[:, None] & present[None])] = np.inf
    order: np.ndarray = np.argsort(distance, axis=1, kind="stable")
    return order[:, :3]


def _apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether two vectors are no line and of some length."""
    lengths = [np.linalg.norm(vector, axis=1, keepdims=True) for vector in (first, second)]
    ones = [v / (n + 1e-6) for v, n in zip((first, second), lengths, strict=True)]
    bent: np.ndarray = np.abs((ones[0] * ones[1]).sum(1)) < _COSINE
    bent &= (lengths[0][:, 0] > 1e-2) & (lengths[1][:, 0] > 1e-2)
    return bent

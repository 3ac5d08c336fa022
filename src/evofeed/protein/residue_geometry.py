"""Ideal residue geometry, and the tables derived from it.

`residue_atoms.txt` has per residue the 14 atoms of `atom14` in order, the rigid group each belongs
to (0 backbone, 3 psi, 4-7 chi1-chi4) and its position in that group's frame, in ångström (AF2 SI
1.8.1, table 2; values: idealised Engh-Huber geometry).
All tables have 21 rows in `aatype` order, the last (X) empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from evofeed.protein.residues import ATOM_ORDER, RESTYPE_3

_AMBIGUOUS: Final = {
    "ASP": {"OD1": "OD2"},
    "GLU": {"OE1": "OE2"},
    "PHE": {"CD1": "CD2", "CE1": "CE2"},
    "TYR": {"CD1": "CD2", "CE1": "CE2"},
}
"""Atoms whose names may be exchanged by a half turn of the last chi (AF2 SI table 3)."""


def _read_atoms() -> dict[str, dict[str, tuple[int, tuple[float, float, float]]]]:
    residues: dict[str, dict[str, tuple[int, tuple[float, float, float]]]] = {}
    name = ""
    for line in Path(__file__).with_name("residue_atoms.txt").read_text().splitlines():
        if line.startswith(" "):
            atom, group, x, y, z = line.split()
            residues[name][atom] = (int(group), (float(x), float(y), float(z)))
        elif not line.startswith("#"):
            name = line.split()[0]
            residues[name] = {}
    return residues


RESIDUE_ATOMS: Final = _read_atoms()
"""`{"ALA": {"N": (group, (x, y, z)), ...}, ...}`, atoms in `atom14` order."""


def _chi_atoms(name: str) -> list[list[str]]:
    """Atoms of each chi, which rotates about its two middle atoms and ends at its group's first."""
    chis, last = [], ["N", "CA", "CB"]
    for chi in range(4):
        group = [atom for atom, (number, _) in RESIDUE_ATOMS[name].items() if number == 4 + chi]
        if not group:
            break
        chis.append([*last, group[0]])
        last = chis[-1][1:]
    return chis


CHI_ATOMS: Final = {name: _chi_atoms(name) for name in RESTYPE_3}
"""The four atoms of each chi angle, chi1 first."""


def _frame(x_axis: np.ndarray, y_hint: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """4x4 transform whose x axis is `x_axis`, with y in the plane of `y_hint`."""
    ex = x_axis / np.linalg.norm(x_axis)
    ey = y_hint - np.dot(y_hint, ex) * ex
    ey /= np.linalg.norm(ey)
    frame = np.eye(4)
    frame[:3] = np.stack([ex, ey, np.cross(ex, ey), origin], axis=1)
    return frame


def _default_frames() -> np.ndarray:
    """`f32[21, 8, 4, 4]`: each group's frame in its parent's, at zero torsion."""
    frames = np.zeros([21, 8, 4, 4])
    for i, name in enumerate(RESTYPE_3):
        xyz = {atom: np.array(position) for atom, (_, position) in RESIDUE_ATOMS[name].items()}
        frames[i, 0] = frames[i, 1] = np.eye(4)  # backbone; pre-omega has no atoms
        frames[i, 2] = _frame(xyz["N"] - xyz["CA"], np.array([1.0, 0.0, 0.0]), xyz["N"])
        frames[i, 3] = _frame(xyz["C"] - xyz["CA"], xyz["CA"] - xyz["N"], xyz["C"])
        for k, (a, b, c, _) in enumerate(CHI_ATOMS[name]):
            if k == 0:
                frames[i, 4] = _frame(xyz[c] - xyz[b], xyz[a] - xyz[b], xyz[c])
            else:  # in the previous chi frame the rotation axis starts at the origin
                frames[i, 4 + k] = _frame(xyz[c], np.array([-1.0, 0.0, 0.0]), xyz[c])
    return frames.astype(np.float32)


def _atom14_tables() -> dict[str, np.ndarray]:
    tables: dict[str, np.ndarray] = {
        "to_atom37": np.zeros([21, 14], np.int64),
        "mask": np.zeros([21, 14], np.float32),
        "group": np.zeros([21, 14], np.int64),
        "positions": np.zeros([21, 14, 3], np.float32),
        "from_atom37": np.zeros([21, 37], np.int64),
        "mask37": np.zeros([21, 37], np.float32),
        "swap": np.tile(np.arange(14), (21, 1)),
        "ambiguous": np.zeros([21, 14], np.float32),
    }
    for i, name in enumerate(RESTYPE_3):
        slots = list(RESIDUE_ATOMS[name])
        for slot, atom in enumerate(slots):
            group, xyz = RESIDUE_ATOMS[name][atom]
            tables["to_atom37"][i, slot] = ATOM_ORDER[atom]
            tables["mask"][i, slot] = 1
            tables["group"][i, slot] = group
            tables["positions"][i, slot] = xyz
            tables["from_atom37"][i, ATOM_ORDER[atom]] = slot
            tables["mask37"][i, ATOM_ORDER[atom]] = 1
        for atom, alternative in _AMBIGUOUS.get(name, {}).items():
            a, b = slots.index(atom), slots.index(alternative)
            tables["swap"][i, [a, b]] = b, a
            tables["ambiguous"][i, [a, b]] = 1
    return tables


_ATOM14 = _atom14_tables()
ATOM14_TO_ATOM37: Final = _ATOM14["to_atom37"]
"""`i64[21, 14]` atom37 index of each atom14 slot, 0 where the slot is empty."""
ATOM37_TO_ATOM14: Final = _ATOM14["from_atom37"]
"""`i64[21, 37]` atom14 slot of each atom37 atom, 0 where the residue lacks it."""
ATOM14_MASK: Final = _ATOM14["mask"]
ATOM37_MASK: Final = _ATOM14["mask37"]
ATOM14_GROUP: Final = _ATOM14["group"]
"""`i64[21, 14]` rigid group of each atom."""
ATOM14_POSITIONS: Final = _ATOM14["positions"]
"""`f32[21, 14, 3]` ideal position in the group's frame, ångström."""
ATOM14_SWAP: Final = _ATOM14["swap"]
"""`i64[21, 14]` slot that holds the atom's alternative name (itself if none)."""
ATOM14_AMBIGUOUS: Final = _ATOM14["ambiguous"]
DEFAULT_FRAMES: Final = _default_frames()


def _chi_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    atoms = np.zeros([21, 4, 4], np.int64)
    mask = np.zeros([21, 4], np.float32)
    periodic = np.zeros([21, 4], np.float32)
    for i, name in enumerate(RESTYPE_3):
        for k, chi in enumerate(CHI_ATOMS[name]):
            atoms[i, k] = [ATOM_ORDER[atom] for atom in chi]
            mask[i, k] = 1
        if name in _AMBIGUOUS:
            periodic[i, len(CHI_ATOMS[name]) - 1] = 1
    return atoms, mask, periodic


CHI_ATOM37, CHI_MASK, CHI_PI_PERIODIC = _chi_tables()
"""`i64[21, 4, 4]` atom37 indices of each chi's four atoms, `f32[21, 4]` mask of existing
chis, `f32[21, 4]` mask of chis that a half turn does not change."""

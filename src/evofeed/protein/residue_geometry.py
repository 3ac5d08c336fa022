"""Where each atom sits: ideal residue geometry and the tables derived from it.

Per residue the 14 atoms of `atom14` in order, the rigid group each belongs to
(0 backbone, 3 psi, 4-7 chi1-chi4) and its position in that group's frame, in
ångström (AF2 SI 1.8.1, table 2; values: idealised Engh-Huber geometry).
All tables have 21 rows in `aatype` order, the last (X) empty.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from evofeed.protein.residues import ATOM_ORDER, RESTYPE_3

#         atom group  x       y       z
_ATOMS: Final = """
ALA A
  N   0  -0.525   1.363   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.526   0.000   0.000
  O   3   0.627   1.062   0.000
  CB  0  -0.529  -0.774  -1.205
ARG R
  N   0  -0.524   1.362   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.525   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.524  -0.778  -1.209
  CG  4   0.616   1.390   0.000
  CD  5   0.564   1.414   0.000
  NE  6   0.539   1.357   0.000
  CZ  7   0.758   1.093   0.000
  NH1 7   0.206   2.301   0.000
  NH2 7   2.078   0.978   0.000
ASN N
  N   0  -0.536   1.357   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.526   0.000   0.000
  O   3   0.625   1.062   0.000
  CB  0  -0.531  -0.787  -1.200
  CG  4   0.584   1.399   0.000
  OD1 5   0.633   1.059   0.000
  ND2 5   0.593  -1.188   0.001
ASP D
  N   0  -0.525   1.362   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.527   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.526  -0.778  -1.208
  CG  4   0.593   1.398   0.000
  OD1 5   0.610   1.091   0.000
  OD2 5   0.592  -1.101  -0.003
CYS C
  N   0  -0.522   1.362   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.524   0.000   0.000
  O   3   0.625   1.062   0.000
  CB  0  -0.519  -0.773  -1.212
  SG  4   0.728   1.653   0.000
GLN Q
  N   0  -0.526   1.361   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.526   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.525  -0.779  -1.207
  CG  4   0.615   1.393   0.000
  CD  5   0.587   1.399   0.000
  OE1 6   0.634   1.060   0.000
  NE2 6   0.593  -1.189  -0.001
GLU E
  N   0  -0.528   1.361   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.526   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.526  -0.781  -1.207
  CG  4   0.615   1.392   0.000
  CD  5   0.600   1.397   0.000
  OE1 6   0.607   1.095   0.000
  OE2 6   0.589  -1.104  -0.001
GLY G
  N   0  -0.572   1.337   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.517   0.000   0.000
  O   3   0.626   1.062   0.000
HIS H
  N   0  -0.527   1.360   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.525   0.000   0.000
  O   3   0.625   1.063   0.000
  CB  0  -0.525  -0.778  -1.208
  CG  4   0.600   1.370   0.000
  ND1 5   0.744   1.160   0.000
  CD2 5   0.889  -1.021   0.003
  CE1 5   2.030   0.851   0.002
  NE2 5   2.145  -0.466   0.004
ILE I
  N   0  -0.493   1.373   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.527   0.000   0.000
  O   3   0.627   1.062   0.000
  CB  0  -0.536  -0.793  -1.213
  CG1 4   0.534   1.437   0.000
  CG2 4   0.540  -0.785  -1.199
  CD1 5   0.619   1.391   0.000
LEU L
  N   0  -0.520   1.363   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.525   0.000   0.000
  O   3   0.625   1.063   0.000
  CB  0  -0.522  -0.773  -1.214
  CG  4   0.678   1.371   0.000
  CD1 5   0.530   1.430   0.000
  CD2 5   0.535  -0.774   1.200
LYS K
  N   0  -0.526   1.362   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.526   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.524  -0.778  -1.208
  CG  4   0.619   1.390   0.000
  CD  5   0.559   1.417   0.000
  CE  6   0.560   1.416   0.000
  NZ  7   0.554   1.387   0.000
MET M
  N   0  -0.521   1.364   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.525   0.000   0.000
  O   3   0.625   1.062   0.000
  CB  0  -0.523  -0.776  -1.210
  CG  4   0.613   1.391   0.000
  SD  5   0.703   1.695   0.000
  CE  6   0.320   1.786   0.000
PHE F
  N   0  -0.518   1.363   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.524   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.525  -0.776  -1.212
  CG  4   0.607   1.377   0.000
  CD1 5   0.709   1.195   0.000
  CD2 5   0.706  -1.196   0.000
  CE1 5   2.102   1.198   0.000
  CE2 5   2.098  -1.201   0.000
  CZ  5   2.794  -0.003  -0.001
PRO P
  N   0  -0.566   1.351   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.527   0.000   0.000
  O   3   0.621   1.066   0.000
  CB  0  -0.546  -0.611  -1.293
  CG  4   0.382   1.445   0.000
  CD  5   0.477   1.424   0.000
SER S
  N   0  -0.529   1.360   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.525   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.518  -0.777  -1.211
  OG  4   0.503   1.325   0.000
THR T
  N   0  -0.517   1.364   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.526   0.000   0.000
  O   3   0.626   1.062   0.000
  CB  0  -0.516  -0.793  -1.215
  OG1 4   0.472   1.353   0.000
  CG2 4   0.550  -0.718  -1.228
TRP W
  N   0  -0.521   1.363   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.525   0.000   0.000
  O   3   0.627   1.062   0.000
  CB  0  -0.523  -0.776  -1.212
  CG  4   0.609   1.370   0.000
  CD1 5   0.824   1.091   0.000
  CD2 5   0.854  -1.148  -0.005
  NE1 5   2.140   0.690  -0.004
  CE2 5   2.186  -0.678  -0.007
  CE3 5   0.622  -2.530  -0.007
  CZ2 5   3.283  -1.543  -0.011
  CZ3 5   1.715  -3.389  -0.011
  CH2 5   3.028  -2.890  -0.013
TYR Y
  N   0  -0.522   1.362   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.524   0.000   0.000
  O   3   0.627   1.062   0.000
  CB  0  -0.522  -0.776  -1.213
  CG  4   0.607   1.382   0.000
  CD1 5   0.716   1.195   0.000
  CD2 5   0.713  -1.194  -0.001
  CE1 5   2.107   1.200  -0.002
  CE2 5   2.104  -1.201  -0.003
  CZ  5   2.791  -0.001  -0.003
  OH  5   4.168  -0.002  -0.005
VAL V
  N   0  -0.494   1.373   0.000
  CA  0   0.000   0.000   0.000
  C   0   1.527   0.000   0.000
  O   3   0.627   1.062   0.000
  CB  0  -0.533  -0.795  -1.213
  CG1 4   0.540   1.429   0.000
  CG2 4   0.533  -0.776   1.203
"""

_AMBIGUOUS: Final = {
    "ASP": {"OD1": "OD2"},
    "GLU": {"OE1": "OE2"},
    "PHE": {"CD1": "CD2", "CE1": "CE2"},
    "TYR": {"CD1": "CD2", "CE1": "CE2"},
}
"""Atoms whose names may be exchanged by a half turn of the last chi (AF2 SI table 3)."""


def _parse_atoms() -> dict[str, dict[str, tuple[int, tuple[float, float, float]]]]:
    residues: dict[str, dict[str, tuple[int, tuple[float, float, float]]]] = {}
    name = ""
    for line in _ATOMS.strip().splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            residues[name] = {}
            continue
        atom, group, x, y, z = line.split()
        residues[name][atom] = (int(group), (float(x), float(y), float(z)))
    return residues


RESIDUE_ATOMS: Final = _parse_atoms()
"""`{"ALA": {"N": (group, (x, y, z)), ...}, ...}`, atoms in `atom14` order."""


def _chi_atoms(name: str) -> list[list[str]]:
    """Each chi is about the bond to the atom before, and ends at the first atom of its group."""
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
        at = {atom: np.array(xyz) for atom, (_, xyz) in RESIDUE_ATOMS[name].items()}
        frames[i, 0] = frames[i, 1] = np.eye(4)  # backbone; pre-omega has no atoms
        frames[i, 2] = _frame(at["N"] - at["CA"], np.array([1.0, 0.0, 0.0]), at["N"])
        frames[i, 3] = _frame(at["C"] - at["CA"], at["CA"] - at["N"], at["C"])
        for k, (a, b, c, _) in enumerate(CHI_ATOMS[name]):
            if k == 0:
                frames[i, 4] = _frame(at[c] - at[b], at[a] - at[b], at[c])
            else:  # in the previous chi frame the rotation axis starts at the origin
                frames[i, 4 + k] = _frame(at[c], np.array([-1.0, 0.0, 0.0]), at[c])
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
        for one, other in _AMBIGUOUS.get(name, {}).items():
            a, b = slots.index(one), slots.index(other)
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
"""`i64[21, 4, 4]` atom37 indices of each chi's four atoms, `f32[21, 4]` which
chis exist, `f32[21, 4]` which are unchanged by a half turn."""

"""Residue tables side by side on a device, and where in a row each begins."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evofeed.loader.transforms.structure import GROUP_ATOMS, GROUP_EXISTS
from evofeed.protein import residue_geometry as geometry
from evofeed.protein.residues import ATOM_ORDER

_N, _CA, _C, _O = (ATOM_ORDER[name] for name in ("N", "CA", "C", "O"))


def _torsion_atoms() -> np.ndarray:
    """`i64[21, 8, 4]` atoms of the seven torsions: 37 and more are of the residue itself,
    less than 37 of the one before it."""
    own = 37
    atoms = np.zeros([21, 8, 4], np.int64)
    atoms[:, 0] = _CA, _C, own + _N, own + _CA
    atoms[:, 1] = _C, own + _N, own + _CA, own + _C
    atoms[:, 2] = own + _N, own + _CA, own + _C, own + _O
    atoms[:, 3:7] = own + geometry.CHI_ATOM37
    return atoms


_ONE: Final = np.ones([21, 3], np.float32)
_NONE: Final = np.zeros([21, 1], np.float32)
INTEGERS: Final = {
    "to_atom37": geometry.ATOM14_TO_ATOM37,
    "to_atom14": geometry.ATOM37_TO_ATOM14,
    "swap": geometry.ATOM14_SWAP,
    "group_atoms": GROUP_ATOMS.reshape(21, 24),
    "torsion_atoms": _torsion_atoms().reshape(21, 32),
}
FLOATS: Final = {
    "mask14": geometry.ATOM14_MASK,
    "mask37": geometry.ATOM37_MASK,
    "ambiguous": geometry.ATOM14_AMBIGUOUS,
    "group_exists": GROUP_EXISTS,
    "group_ambiguous": np.pad(geometry.CHI_PI_PERIODIC, ((0, 0), (4, 0))),
    "torsion_exists": np.concatenate([_ONE, geometry.CHI_MASK, _NONE], 1),
    "torsion_mirror": np.pad(1 - 2 * geometry.CHI_PI_PERIODIC, ((0, 0), (3, 1)), constant_values=1),
}
WIDTH: Final = 128
"""Columns of either table, filled up with zeros."""


def column(name: str) -> int:
    """Where a table begins."""
    tables = INTEGERS if name in INTEGERS else FLOATS
    names = list(tables)
    return sum(tables[other].shape[1] for other in names[: names.index(name)])


@functools.lru_cache(maxsize=64)
def residue_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """`i32[21, 128]` and `f32[21, 128]`."""
    out = []
    for tables, dtype in ((INTEGERS, np.int32), (FLOATS, np.float32)):
        whole = np.concatenate(list(tables.values()), axis=1)
        padded = np.pad(whole, ((0, 0), (0, WIDTH - whole.shape[1]))).astype(dtype)
        out.append(torch.from_numpy(padded).to(device))
    return out[0], out[1]

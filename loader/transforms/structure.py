"""Atom37 coordinates to the inputs of the losses and the template embedder.

All functions work on any device and any leading dimensions, per residue; only
torsion angles depend on the previous residue, so they are computed on the full
chain before it is cropped. Coordinates in ångström. Source: AF2 SI 1.8.1, 1.8.5,
1.9.1 and algorithm 21; details such as epsilons, the rotated backbone frame and
psi's sign are those of the published training code, to 1e-5.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evofeed.base.shapes import Float, Integer
from evofeed.protein import residue_geometry as geometry
from evofeed.protein.pseudo_beta import pseudo_beta, pseudo_beta_mask
from evofeed.protein.residues import ATOM_ORDER, UNKNOWN

_EPS: Final = 1e-8
_N, _CA, _C, _O = (ATOM_ORDER[name] for name in ("N", "CA", "C", "O"))


def _group_tables() -> tuple[np.ndarray, np.ndarray]:
    """`i64[21, 8, 3]` atoms that define each rigid group's frame, `f32[21, 8]` existing groups."""
    atoms = np.zeros([21, 8, 3], np.int64)
    exists = np.zeros([21, 8], np.float32)
    atoms[:, 0] = _C, _CA, _N
    atoms[:, 3] = _CA, _C, _O
    atoms[:, 4:] = geometry.CHI_ATOM37[:, :, 1:]
    exists[:, [0, 3]] = 1
    exists[:, 4:] = geometry.CHI_MASK
    return atoms, exists


def _torsion_atoms() -> np.ndarray:
    """`i64[21, 8, 4]` atoms of the seven torsions: of the previous residue below 37, of the
    residue itself from 37 on."""
    offset = 37
    atoms = np.zeros([21, 8, 4], np.int64)
    atoms[:, 0] = _CA, _C, offset + _N, offset + _CA
    atoms[:, 1] = _C, offset + _N, offset + _CA, offset + _C
    atoms[:, 2] = offset + _N, offset + _CA, offset + _C, offset + _O
    atoms[:, 3:7] = offset + geometry.CHI_ATOM37
    return atoms


_GROUP_ATOMS, _GROUP_EXISTS = _group_tables()
_PI_PERIODIC: Final = geometry.CHI_PI_PERIODIC
INTEGERS: Final = {
    "to_atom37": geometry.ATOM14_TO_ATOM37,
    "to_atom14": geometry.ATOM37_TO_ATOM14,
    "swap": geometry.ATOM14_SWAP,
    "group_atoms": _GROUP_ATOMS.reshape(21, 24),
    "torsion_atoms": _torsion_atoms().reshape(21, 32),
}
FLOATS: Final = {
    "mask14": geometry.ATOM14_MASK,
    "mask37": geometry.ATOM37_MASK,
    "ambiguous": geometry.ATOM14_AMBIGUOUS,
    "group_exists": _GROUP_EXISTS,
    "group_ambiguous": np.pad(_PI_PERIODIC, ((0, 0), (4, 0))),
    "torsion_exists": np.pad(
        np.pad(geometry.CHI_MASK, ((0, 0), (3, 0)), constant_values=1), ((0, 0), (0, 1))
    ),
    "torsion_mirror": np.pad(1 - 2 * _PI_PERIODIC, ((0, 0), (3, 1)), constant_values=1),
}
"""Integer and float tables by residue type; the last of the eight torsions does not exist."""


@functools.lru_cache(maxsize=64)
def _side_by_side(kind: str, device: torch.device) -> Tensor:
    """All integer, or all float, residue tables concatenated to `[21, width]`, on a device."""
    tables = list((INTEGERS if kind == "integers" else FLOATS).values())
    return torch.from_numpy(np.concatenate(tables, axis=1)).to(device)


class ResidueTables:
    """The residue tables of a sequence, gathered in two lookups for all tables."""

    def __init__(self, aatype: Integer[Tensor, "*L"]) -> None:
        self._values: dict[str, Tensor] = {}
        for kind, tables in (("integers", INTEGERS), ("floats", FLOATS)):
            rows = _side_by_side(kind, aatype.device)[aatype]
            parts = torch.split(rows, [table.shape[1] for table in tables.values()], dim=-1)
            self._values.update(zip(tables, parts, strict=True))

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def make_atom14_masks(tables: ResidueTables) -> dict[str, Tensor]:
    """Masks of existing atoms, and the indices between the atom14 and atom37 layouts."""
    return {
        "atom14_atom_exists": tables["mask14"],
        "residx_atom14_to_atom37": tables["to_atom37"],
        "residx_atom37_to_atom14": tables["to_atom14"],
        "atom37_atom_exists": tables["mask37"],
    }


def make_atom14_positions(
    tables: ResidueTables, positions: Float[Tensor, "*L 37 3"], mask: Float[Tensor, "*L 37"]
) -> dict[str, Tensor]:
    """Ground truth in atom14 order, and an alternative with ambiguous names exchanged."""
    slots, swap = tables["to_atom37"], tables["swap"]
    exists = tables["mask14"] * mask.gather(-1, slots)
    xyz = exists[..., None] * positions.gather(-2, _over_xyz(slots))
    return {
        "atom14_gt_exists": exists,
        "atom14_gt_positions": xyz,
        "atom14_alt_gt_positions": xyz.gather(-2, _over_xyz(swap)),
        "atom14_alt_gt_exists": exists.gather(-1, swap),
        "atom14_atom_is_ambiguous": tables["ambiguous"],
    }


def _over_xyz(index: Tensor) -> Tensor:
    return index[..., None].expand(*index.shape, 3)


def frame_axes(points: Float[Tensor, "*N 3 3"]) -> Float[Tensor, "*N 3 3"]:
    """Rotations, axes as columns, of frames given by three points (AF2 algorithm 21).

    The points lie on the negative x axis, at the origin and in the xy plane.
    """
    x = points[..., 1, :] - points[..., 0, :]
    y = points[..., 2, :] - points[..., 1, :]
    x = x / torch.sqrt((x * x).sum(-1, keepdim=True) + _EPS)
    y = y - x * (x * y).sum(-1, keepdim=True)
    y = y / torch.sqrt((y * y).sum(-1, keepdim=True) + _EPS)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def atom37_to_frames(
    tables: ResidueTables, positions: Float[Tensor, "*L 37 3"], mask: Float[Tensor, "*L 37"]
) -> dict[str, Tensor]:
    """Frames of the eight rigid groups of each residue as 4x4 transforms, and their masks."""
    device, lead = positions.device, positions.shape[:-2]
    atoms = tables["group_atoms"]
    points = positions.gather(-2, _over_xyz(atoms)).view(*lead, 8, 3, 3)
    exists, ambiguous = tables["group_exists"], tables["group_ambiguous"]
    frame_mask = mask.gather(-1, atoms).view(*lead, 8, 3).amin(-1) * exists
    axes = frame_axes(points)
    axes[..., 0, :, :] *= _constant((-1.0, 1.0, -1.0), device)
    frames = axes.new_zeros(*axes.shape[:-2], 4, 4)
    frames[..., :3, :3] = axes
    frames[..., :3, 3] = points[..., 1, :]
    frames[..., 3, 3] = 1
    # A rotation by pi about x exchanges the ambiguous atoms.
    turn = 1 - 2 * ambiguous[..., None] * _constant((0.0, 1.0, 1.0, 0.0), device)
    return {
        "rigidgroups_gt_frames": frames,
        "rigidgroups_gt_exists": frame_mask,
        "rigidgroups_group_exists": exists,
        "rigidgroups_group_is_ambiguous": ambiguous,
        "rigidgroups_alt_gt_frames": frames * turn[..., None, :],
        "backbone_rigid_tensor": frames[..., 0, :, :],
        "backbone_rigid_mask": frame_mask[..., 0],
    }


def atom37_to_torsion_angles(
    tables: ResidueTables, positions: Float[Tensor, "*L 37 3"], mask: Float[Tensor, "*L 37"]
) -> dict[str, Tensor]:
    """Pre-omega, phi, psi and chi1-4 as (sin, cos), their alternatives turned by pi, and a mask.

    The axis before the atoms is that of residues; the first one has no previous residue.
    """
    device, lead = positions.device, positions.shape[:-2]
    previous = torch.nn.functional.pad(positions[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    previous_mask = torch.nn.functional.pad(mask[..., :-1, :], (0, 0, 1, 0))
    atoms = tables["torsion_atoms"][..., :28]
    atoms4 = torch.cat([previous, positions], -2).gather(-2, _over_xyz(atoms)).view(*lead, 7, 4, 3)
    atoms_mask = torch.cat([previous_mask, mask], -1).gather(-1, atoms).view(*lead, 7, 4).prod(-1)
    # Slices, not lists of indices, which would be copied to the device each time.
    axes = frame_axes(torch.cat([atoms4[..., 1:3, :], atoms4[..., :1, :]], dim=-2))
    # No matmul here: it would follow the user's TF32 setting.
    local = (axes * (atoms4[..., 3, :] - atoms4[..., 2, :])[..., None]).sum(-2)
    sin_cos = local[..., 1:].flip(-1)
    sin_cos = sin_cos / torch.sqrt((sin_cos * sin_cos).sum(-1, keepdim=True) + _EPS)
    sin_cos = sin_cos * _constant((1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0), device)[:, None]
    return {
        "torsion_angles_sin_cos": sin_cos,
        "alt_torsion_angles_sin_cos": sin_cos * tables["torsion_mirror"][..., :7, None],
        "torsion_angles_mask": atoms_mask * tables["torsion_exists"][..., :7],
    }


def structure_features(
    aatype: Integer[Tensor, " L"],
    tables: ResidueTables,
    positions: Float[Tensor, "L 37 3"],
    mask: Float[Tensor, "L 37"],
) -> dict[str, Tensor]:
    """Every ground-truth feature of a full chain, by name."""
    torsions = atom37_to_torsion_angles(tables, positions, mask)
    return {
        "all_atom_positions": positions,
        "all_atom_mask": mask,
        **make_atom14_positions(tables, positions, mask),
        **atom37_to_frames(tables, positions, mask),
        "pseudo_beta": pseudo_beta(aatype, positions),
        "pseudo_beta_mask": pseudo_beta_mask(aatype, mask),
        "chi_angles_sin_cos": torsions["torsion_angles_sin_cos"][..., 3:, :],
        "chi_mask": torsions["torsion_angles_mask"][..., 3:],
    }


def template_features(
    aatype: Integer[Tensor, "T L"],
    positions: Float[Tensor, "T L 37 3"],
    mask: Float[Tensor, "T L 37"],
    sum_probs: Float[Tensor, " T"],
) -> dict[str, Tensor]:
    """Every template feature of full-length templates, by name."""
    tables = ResidueTables(aatype.clamp(max=UNKNOWN))  # templates have gaps
    torsions = atom37_to_torsion_angles(tables, positions, mask)
    return {
        "template_aatype": aatype,
        "template_all_atom_positions": positions,
        "template_all_atom_mask": mask,
        "template_sum_probs": sum_probs[:, None],
        "template_mask": torch.ones_like(sum_probs),
        "template_pseudo_beta": pseudo_beta(aatype, positions),
        "template_pseudo_beta_mask": pseudo_beta_mask(aatype, mask),
        **{f"template_{name}": value for name, value in torsions.items()},
    }

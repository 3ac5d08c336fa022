"""Atom37 coordinates to everything the losses and the template embedder want.

All functions work on any device and any leading dimensions, per residue; only
the torsion angles look at the residue before, so they are made on the whole
chain before it is cropped. Coordinates in ångström. Source: AF2 SI 1.8.1, 1.8.5,
1.9.1 and algorithm 21; the odd details (epsilons, the turned backbone frame,
psi's sign) are those of the published training code, to 1e-5.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evofeed import residue_geometry as geometry
from evofeed.residues import ATOM_ORDER, RESTYPES, UNKNOWN
from evofeed.shapes import Float, Integer

_EPS: Final = 1e-8
_GLYCINE: Final = RESTYPES.index("G")
_N, _CA, _C, _CB, _O = (ATOM_ORDER[name] for name in ("N", "CA", "C", "CB", "O"))


def _group_tables() -> tuple[np.ndarray, np.ndarray]:
    """`i64[21, 8, 3]` atoms that span each rigid group, `f32[21, 8]` which groups exist."""
    atoms = np.zeros([21, 8, 3], np.int64)
    exists = np.zeros([21, 8], np.float32)
    atoms[:, 0] = _C, _CA, _N
    atoms[:, 3] = _CA, _C, _O
    atoms[:, 4:] = geometry.CHI_ATOM37[:, :, 1:]
    exists[:, [0, 3]] = 1
    exists[:, 4:] = geometry.CHI_MASK
    return atoms, exists


_GROUP_ATOMS, _GROUP_EXISTS = _group_tables()
_TABLES: Final = {
    "to_atom37": geometry.ATOM14_TO_ATOM37,
    "to_atom14": geometry.ATOM37_TO_ATOM14,
    "mask14": geometry.ATOM14_MASK,
    "mask37": geometry.ATOM37_MASK,
    "swap": geometry.ATOM14_SWAP,
    "ambiguous": geometry.ATOM14_AMBIGUOUS,
    "group_atoms": _GROUP_ATOMS,
    "group_exists": _GROUP_EXISTS,
    "chi_atoms": geometry.CHI_ATOM37,
    "chi_mask": geometry.CHI_MASK,
    "chi_periodic": geometry.CHI_PI_PERIODIC,
}


@functools.lru_cache(maxsize=256)
def _table(name: str, device: torch.device) -> Tensor:
    """A residue table on a device, copied there once."""
    return torch.from_numpy(_TABLES[name]).to(device)


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def make_atom14_masks(aatype: Integer[Tensor, "*L"]) -> dict[str, Tensor]:
    """Which atoms a residue has, and where atom14 and atom37 hold each other's."""
    at = aatype.device
    return {
        "atom14_atom_exists": _table("mask14", at)[aatype],
        "residx_atom14_to_atom37": _table("to_atom37", at)[aatype],
        "residx_atom37_to_atom14": _table("to_atom14", at)[aatype],
        "atom37_atom_exists": _table("mask37", at)[aatype],
    }


def make_atom14_positions(
    aatype: Integer[Tensor, "*L"],
    positions: Float[Tensor, "*L 37 3"],
    mask: Float[Tensor, "*L 37"],
) -> dict[str, Tensor]:
    """Ground truth in atom14 order, and again with ambiguous names exchanged."""
    at = aatype.device
    slots = _table("to_atom37", at)[aatype]
    exists = _table("mask14", at)[aatype] * mask.gather(-1, slots)
    xyz = exists[..., None] * positions.gather(-2, _over_xyz(slots))
    swap = _table("swap", at)[aatype]
    return {
        "atom14_gt_exists": exists,
        "atom14_gt_positions": xyz,
        "atom14_alt_gt_positions": xyz.gather(-2, _over_xyz(swap)),
        "atom14_alt_gt_exists": exists.gather(-1, swap),
        "atom14_atom_is_ambiguous": _table("ambiguous", at)[aatype],
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
    aatype: Integer[Tensor, "*L"],
    positions: Float[Tensor, "*L 37 3"],
    mask: Float[Tensor, "*L 37"],
) -> dict[str, Tensor]:
    """The eight rigid groups of each residue as 4x4 transforms, and which are known."""
    at = aatype.device
    atoms = _table("group_atoms", at)[aatype]  # *L 8 3
    flat = atoms.flatten(-2)
    points = positions.gather(-2, _over_xyz(flat)).view(*aatype.shape, 8, 3, 3)
    known = mask.gather(-1, flat).view(*aatype.shape, 8, 3).amin(-1)
    exists = _table("group_exists", at)[aatype]
    ambiguous = torch.cat(
        [exists.new_zeros(*aatype.shape, 4), _table("chi_periodic", at)[aatype]], dim=-1
    )
    axes = frame_axes(points)
    axes[..., 0, :, :] *= _constant((-1.0, 1.0, -1.0), at)
    frames = axes.new_zeros(*axes.shape[:-2], 4, 4)
    frames[..., :3, :3] = axes
    frames[..., :3, 3] = points[..., 1, :]
    frames[..., 3, 3] = 1
    # A half turn about x exchanges the ambiguous atoms.
    turn = 1 - 2 * ambiguous[..., None] * _constant((0.0, 1.0, 1.0, 0.0), at)
    return {
        "rigidgroups_gt_frames": frames,
        "rigidgroups_gt_exists": known * exists,
        "rigidgroups_group_exists": exists,
        "rigidgroups_group_is_ambiguous": ambiguous,
        "rigidgroups_alt_gt_frames": frames * turn[..., None, :],
        "backbone_rigid_tensor": frames[..., 0, :, :],
        "backbone_rigid_mask": (known * exists)[..., 0],
    }


def atom37_to_torsion_angles(
    aatype: Integer[Tensor, "*L"],
    positions: Float[Tensor, "*L 37 3"],
    mask: Float[Tensor, "*L 37"],
) -> dict[str, Tensor]:
    """Pre-omega, phi, psi and chi1-4 as (sin, cos), their half-turned twins, and a mask.

    Residues run along the last axis of `aatype`; the first has no residue before it.
    """
    at = aatype.device
    aatype = aatype.clamp(max=UNKNOWN)  # gaps of templates
    before = torch.nn.functional.pad(positions[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    mask_before = torch.nn.functional.pad(mask[..., :-1, :], (0, 0, 1, 0))
    chi = _table("chi_atoms", at)[aatype].flatten(-2)
    four = torch.cat(
        [
            torch.cat([before[..., 1:3, :], positions[..., :2, :]], -2)[..., None, :, :],
            torch.cat([before[..., 2:3, :], positions[..., :3, :]], -2)[..., None, :, :],
            torch.cat([positions[..., :3, :], positions[..., 4:5, :]], -2)[..., None, :, :],
            positions.gather(-2, _over_xyz(chi)).view(*aatype.shape, 4, 4, 3),
        ],
        dim=-3,
    )  # *L 7 4 3
    backbone = mask[..., 0] * mask[..., 1]
    backbone_c = backbone * mask[..., 2]
    chi_known = mask.gather(-1, chi).view(*aatype.shape, 4, 4).prod(-1)
    known = torch.cat(
        [
            (mask_before[..., 1] * mask_before[..., 2] * backbone)[..., None],
            (mask_before[..., 2] * backbone_c)[..., None],
            (backbone_c * mask[..., 4])[..., None],
            _table("chi_mask", at)[aatype] * chi_known,
        ],
        dim=-1,
    )
    # Slices, not lists of indices: a list would have to be copied to the device each time.
    axes = frame_axes(torch.cat([four[..., 1:3, :], four[..., :1, :]], dim=-2))
    # No matmul here: it would follow the user's TF32 setting.
    local = (axes * (four[..., 3, :] - four[..., 2, :])[..., None]).sum(-2)
    sin_cos = local[..., 1:].flip(-1)
    sin_cos = sin_cos / torch.sqrt((sin_cos * sin_cos).sum(-1, keepdim=True) + _EPS)
    sin_cos = sin_cos * _constant((1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0), at)[:, None]
    mirror = torch.nn.functional.pad(1 - 2 * _table("chi_periodic", at)[aatype], (3, 0), value=1.0)
    return {
        "torsion_angles_sin_cos": sin_cos,
        "alt_torsion_angles_sin_cos": sin_cos * mirror[..., None],
        "torsion_angles_mask": known,
    }


def make_pseudo_beta(
    aatype: Integer[Tensor, "*L"],
    positions: Float[Tensor, "*L 37 3"],
    mask: Float[Tensor, "*L 37"],
) -> tuple[Tensor, Tensor]:
    """CB of each residue, CA of glycine: positions `[*L, 3]` and mask `[*L]`."""
    glycine = aatype == _GLYCINE
    beta = torch.where(glycine[..., None], positions[..., _CA, :], positions[..., _CB, :])
    return beta, torch.where(glycine, mask[..., _CA], mask[..., _CB])


def structure_features(
    aatype: Integer[Tensor, " L"],
    positions: Float[Tensor, "L 37 3"],
    mask: Float[Tensor, "L 37"],
) -> dict[str, Tensor]:
    """Every ground-truth feature of a whole chain, by name."""
    torsions = atom37_to_torsion_angles(aatype, positions, mask)
    beta, beta_mask = make_pseudo_beta(aatype, positions, mask)
    return {
        "all_atom_positions": positions,
        "all_atom_mask": mask,
        **make_atom14_positions(aatype, positions, mask),
        **atom37_to_frames(aatype, positions, mask),
        "pseudo_beta": beta,
        "pseudo_beta_mask": beta_mask,
        "chi_angles_sin_cos": torsions["torsion_angles_sin_cos"][..., 3:, :],
        "chi_mask": torsions["torsion_angles_mask"][..., 3:],
    }


def template_features(
    aatype: Integer[Tensor, "T L"],
    positions: Float[Tensor, "T L 37 3"],
    mask: Float[Tensor, "T L 37"],
    sum_probs: Float[Tensor, " T"],
) -> dict[str, Tensor]:
    """Every template feature of whole templates, by name."""
    torsions = atom37_to_torsion_angles(aatype, positions, mask)
    beta, beta_mask = make_pseudo_beta(aatype, positions, mask)
    return {
        "template_aatype": aatype,
        "template_all_atom_positions": positions,
        "template_all_atom_mask": mask,
        "template_sum_probs": sum_probs[:, None],
        "template_mask": torch.ones_like(sum_probs),
        "template_pseudo_beta": beta,
        "template_pseudo_beta_mask": beta_mask,
        **{f"template_{name}": value for name, value in torsions.items()},
    }

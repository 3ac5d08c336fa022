"""Structural violations: broken peptide bonds, clashes, distances out of bounds in residues.

Source: AF2 SI 1.9.11, equations 44 to 47. Letters: R residues; atoms are in atom14 layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.protein.residues import RESTYPES
from evofeed.trainer.losses.stereochemistry import (
    ATOM37_RADIUS,
    C_N_LENGTH,
    C_N_LENGTH_PROLINE,
    CA_CA_DISTANCE,
    COS_C_N_CA,
    COS_CA_C_N,
    atom14_distance_bounds,
)
from evofeed.trainer.model.compiled import compilable
from evofeed.trainer.model.config import LossConfig

_N, _CA, _C = 0, 1, 2
_SULPHUR_SLOT = 5  # of cysteine; as in AF2, this slot is exempt in every pair of residues
_BOND_EPS = 1e-6
_CLASH_EPS = 1e-10


def find_structural_violations(
    batch: Mapping[str, Tensor], atom14: Float[Tensor, "*B R 14 3"], config: LossConfig
) -> dict[str, Any]:
    """All checks, as nested dicts with OpenFold's names: `between_residues`,
    `within_residues`, and `total_per_residue_violations_mask [*, R]`.
    """
    exists, asym_id = batch["atom14_atom_exists"], batch.get("asym_id")
    bonds = between_residue_bonds(
        atom14, exists, batch["residue_index"], batch["aatype"],
        config.violation_tolerance_factor, config.ca_c_n_angle_stddev,
        None if config.bonds_across_chains else asym_id,
    )  # fmt: skip
    device, dtype = atom14.device, atom14.dtype
    radius, lower, upper = _tables(
        config.clash_overlap_tolerance, config.violation_tolerance_factor, device, dtype
    )
    radius = radius[batch["residx_atom14_to_atom37"]] * exists
    tolerance = config.clash_overlap_tolerance
    clashes = between_residue_clashes(
        atom14, exists, radius, batch["residue_index"], tolerance, asym_id,
        same_number_never_clashes=config.same_number_never_clashes,
    )  # fmt: skip
    within = within_residue_violations(
        atom14, exists, lower[batch["aatype"]], upper[batch["aatype"]]
    )
    per_residue = torch.stack(
        [
            bonds["connections_per_residue_violation_mask"],
            clashes["clashes_per_atom_clash_mask"].amax(-1),
            within["per_atom_violations"].amax(-1),
        ]
    )
    return {
        "between_residues": bonds | clashes,
        "within_residues": within,
        "total_per_residue_violations_mask": per_residue.amax(0),
    }


def violation_loss(
    violations: Mapping[str, Any],
    atom14_atom_exists: Float[Tensor, "*B R 14"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Bond length, two bond angles, and clashes per atom. Source: equation 47."""
    between, within = violations["between_residues"], violations["within_residues"]
    per_atom = between["clashes_per_atom_loss_sum"] + within["per_atom_loss_sum"]
    if config.average_clashes:
        count = between["clashes_per_atom_num_clash"] + within["per_atom_num_clash"]
        per_atom = per_atom / (count + config.eps)
    atoms = torch.sum(atom14_atom_exists, dim=(-2, -1))
    clash = torch.sum(per_atom, dim=(-2, -1)) / (config.eps + atoms)
    bonds = between["bonds_c_n_loss_mean"] + between["angles_ca_c_n_loss_mean"]
    return bonds + between["angles_c_n_ca_loss_mean"] + clash  # type: ignore[no-any-return]


def between_residue_bonds(
    atom14: Float[Tensor, "*B R 14 3"],
    exists: Float[Tensor, "*B R 14"],
    residue_index: Int[Tensor, "*B R"],
    aatype: Int[Tensor, "*B R"],
    tolerance_factor: float,
    ca_c_n_stddev: float,
    asym_id: Int[Tensor, "*B R"] | None = None,
) -> dict[str, Tensor]:
    """Peptide bonds whose length or angles deviate by more than the tolerance.

    With `asym_id`, residues of two chains have no bond. Source: equations 44 and 45.
    """
    ca, c = atom14[..., :-1, _CA, :], atom14[..., :-1, _C, :]
    next_n, next_ca = atom14[..., 1:, _N, :], atom14[..., 1:, _CA, :]
    no_gap = (residue_index[..., 1:] - residue_index[..., :-1] == 1).to(atom14.dtype)
    if asym_id is not None:
        no_gap = no_gap * (asym_id[..., 1:] == asym_id[..., :-1])
    c_n_mask = exists[..., :-1, _C] * exists[..., 1:, _N] * no_gap
    c_n, c_n_length = _unit(next_n - c)
    c_ca, _ = _unit(ca - c)
    n_ca, _ = _unit(next_ca - next_n)

    proline = (aatype[..., 1:] == RESTYPES.index("P")).to(atom14.dtype)
    length, sigma = (
        general + (before_proline - general) * proline
        for general, before_proline in zip(C_N_LENGTH, C_N_LENGTH_PROLINE, strict=True)
    )
    cos_ca_c_n = torch.sum(c_ca * c_n, dim=-1)
    cos_c_n_ca = torch.sum(-c_n * n_ca, dim=-1)
    terms: list[tuple[Tensor, Tensor | float, Tensor]] = [
        (c_n_length - length, sigma, c_n_mask),
        (cos_ca_c_n - COS_CA_C_N, ca_c_n_stddev, exists[..., :-1, _CA] * c_n_mask),
        (cos_c_n_ca - COS_C_N_CA[0], COS_C_N_CA[1], exists[..., 1:, _CA] * c_n_mask),
    ]
    means, losses, flags = zip(
        *(_flat_bottom(error, tolerance_factor * sd, mask) for error, sd, mask in terms),
        strict=True,
    )
    flag = torch.stack(flags).amax(0)
    loss = losses[0] + losses[1] + losses[2]
    return {
        "bonds_c_n_loss_mean": means[0],
        "angles_ca_c_n_loss_mean": means[1],
        "angles_c_n_ca_loss_mean": means[2],
        # Each residue of a bond gets half of its loss.
        "connections_per_residue_loss_sum": 0.5 * (F.pad(loss, (0, 1)) + F.pad(loss, (1, 0))),
        "connections_per_residue_violation_mask": torch.maximum(
            F.pad(flag, (0, 1)), F.pad(flag, (1, 0))
        ),
    }


def _unit(vector: Tensor) -> tuple[Tensor, Tensor]:
    length = torch.sqrt(_BOND_EPS + torch.sum(vector**2, dim=-1))
    return vector / length[..., None], length


def _flat_bottom(
    error: Tensor, tolerance: Tensor | float, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Masked mean, loss and 0/1 flag of errors beyond the tolerance."""
    size = torch.sqrt(_BOND_EPS + error**2)
    loss = torch.relu(size - tolerance)
    mean = torch.sum(mask * loss, dim=-1) / (torch.sum(mask, dim=-1) + _BOND_EPS)
    return mean, loss, mask * (size > tolerance)


@compilable
def between_residue_clashes(
    atom14: Float[Tensor, "*B R 14 3"],
    exists: Float[Tensor, "*B R 14"],
    radius: Float[Tensor, "*B R 14"],
    residue_index: Int[Tensor, "*B R"],
    overlap_tolerance: float,
    asym_id: Int[Tensor, "*B R"] | None = None,
    *,
    same_number_never_clashes: bool = False,
) -> dict[str, Tensor]:
    """Atoms of different residues closer than their radii allow. Source: equation 46.

    Exempt are peptide bonds (C-N) and pairs of slots 5 (disulfides).
    """
    slot = torch.arange(14, device=atom14.device)
    points = atom14.flatten(-3, -2)
    square = torch.sum((points[..., :, None, :] - points[..., None, :, :]) ** 2, dim=-1)
    distance = torch.sqrt(_CLASH_EPS + square)
    index = residue_index[..., None].expand(*residue_index.shape, 14).flatten(-2)
    slots = slot.repeat(atom14.shape[-3])
    row, column = index[..., :, None], index[..., None, :]
    bonded = (row + 1 == column) & (slots[:, None] == _C) & (slots[None, :] == _N)
    before = row < column
    if asym_id is not None:
        chain = asym_id[..., None].expand(*asym_id.shape, 14).flatten(-2)
        same_chain = chain[..., :, None] == chain[..., None, :]
        bonded = bonded & same_chain
        if not same_number_never_clashes:  # residues of two chains may have the same number
            before = torch.where(same_chain, before, chain[..., :, None] < chain[..., None, :])
    sulphurs = (slots[:, None] == _SULPHUR_SLOT) & (slots[None, :] == _SULPHUR_SLOT)
    flat = exists.flatten(-2)
    mask = flat[..., :, None] * flat[..., None, :] * (before & ~bonded & ~sulphurs)
    radii = radius.flatten(-2)
    allowed = mask * (radii[..., :, None] + radii[..., None, :]) - overlap_tolerance
    error = mask * torch.relu(allowed - distance)
    clash = mask * (distance < allowed)
    per_atom, count, worst = (
        torch.unflatten(x, -1, (-1, 14))
        for x in (
            error.sum(-2) + error.sum(-1),
            clash.sum(-2) + clash.sum(-1),
            torch.maximum(clash.amax(-2), clash.amax(-1)),
        )
    )
    return {
        "clashes_mean_loss": error.sum((-2, -1)) / (_BOND_EPS + mask.sum((-2, -1))),
        "clashes_per_atom_loss_sum": per_atom,
        "clashes_per_atom_clash_mask": worst,
        "clashes_per_atom_num_clash": count,
    }


def within_residue_violations(
    atom14: Float[Tensor, "*B R 14 3"],
    exists: Float[Tensor, "*B R 14"],
    lower_bound: Float[Tensor, "*B R 14 14"],
    upper_bound: Float[Tensor, "*B R 14 14"],
) -> dict[str, Tensor]:
    """Atoms of one residue outside their distance bounds; every pair counts in both orders."""
    not_self = 1 - torch.eye(14, device=atom14.device, dtype=atom14.dtype)
    mask = exists[..., :, None] * exists[..., None, :] * not_self
    square = torch.sum((atom14[..., :, None, :] - atom14[..., None, :, :]) ** 2, dim=-1)
    distance = torch.sqrt(_CLASH_EPS + square)
    error = mask * (torch.relu(lower_bound - distance) + torch.relu(distance - upper_bound))
    violation = mask * ((distance < lower_bound) | (distance > upper_bound))
    return {
        "per_atom_loss_sum": error.sum(-2) + error.sum(-1),
        "per_atom_violations": torch.maximum(violation.amax(-2), violation.amax(-1)),
        "per_atom_num_clash": violation.sum(-2) + violation.sum(-1),
    }


def violation_metrics(
    batch: Mapping[str, Tensor],
    atom14: Float[Tensor, "*B R 14 3"],
    violations: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Shares of residues with each kind of violation, for reports."""
    seq_mask, exists = batch["seq_mask"], batch["atom14_atom_exists"]
    between, within = violations["between_residues"], violations["within_residues"]
    step = atom14[..., 1:, _CA, :] - atom14[..., :-1, _CA, :]
    distance = torch.sqrt(_BOND_EPS + torch.sum(step**2, dim=-1))
    no_gap = (batch["residue_index"][..., 1:] - batch["residue_index"][..., :-1]) == 1
    if "asym_id" in batch:
        no_gap = no_gap & (batch["asym_id"][..., 1:] == batch["asym_id"][..., :-1])
    ca_mask = exists[..., :-1, _CA] * exists[..., 1:, _CA] * no_gap
    extreme = (distance - CA_CA_DISTANCE > 1.5).to(atom14.dtype)
    return {
        "violations_extreme_ca_ca_distance": _mean(extreme, ca_mask),
        "violations_between_residue_bond": _mean(
            between["connections_per_residue_violation_mask"], seq_mask
        ),
        "violations_between_residue_clash": _mean(
            between["clashes_per_atom_clash_mask"].amax(-1), seq_mask
        ),
        "violations_within_residue": _mean(within["per_atom_violations"].amax(-1), seq_mask),
        "violations_per_residue": _mean(violations["total_per_residue_violations_mask"], seq_mask),
    }


def _mean(value: Tensor, mask: Tensor) -> Tensor:
    return torch.sum(mask * value, dim=-1) / (1e-4 + torch.sum(mask, dim=-1))


@lru_cache(maxsize=8)
def _tables(
    overlap_tolerance: float, tolerance_factor: float, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """Radius of each of 37 atoms; lower and upper distance bounds of two atoms of a residue."""
    arrays = (ATOM37_RADIUS, *atom14_distance_bounds(overlap_tolerance, tolerance_factor))
    return [torch.as_tensor(array, dtype=dtype).to(device) for array in arrays]

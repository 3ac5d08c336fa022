"""Renaming of symmetric ground truth atoms: the naming that fits the prediction better.

Source: AF2 SI 1.8.5, algorithm 26. Letters: R residues.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from evofeed.base.shapes import Float
from evofeed.protein.residue_geometry import ATOM14_AMBIGUOUS
from evofeed.trainer.model.compiled import compilable

_EPS = 1e-10
_AMBIGUOUS = np.flatnonzero(ATOM14_AMBIGUOUS.any(axis=0))
_SLOTS = slice(int(_AMBIGUOUS[0]), int(_AMBIGUOUS[-1]) + 1)
"""The slots of atom14 with an atom of ambiguous name in some residue."""


@compilable
@torch.no_grad()
def rename_ground_truth(
    batch: Mapping[str, Tensor], pred_atom14: Float[Tensor, "*B R 14 3"]
) -> dict[str, Tensor]:
    """True atom14 positions with ambiguous atoms named to fit the prediction.

    The distances of ambiguous atoms to all unambiguous ones are compared.

    Returns:
        `alt_naming_is_better [*, R]` (0 or 1), `renamed_atom14_gt_positions`
        and `renamed_atom14_gt_exists`.
    """
    exists, ambiguous = batch["atom14_gt_exists"], batch["atom14_atom_is_ambiguous"]
    from_mask, to_mask = (exists * ambiguous)[..., _SLOTS], exists * (1 - ambiguous)
    gt, alt = batch["atom14_gt_positions"], batch["atom14_alt_gt_positions"]
    mask = from_mask.flatten(-2)[..., :, None] * to_mask.flatten(-2)[..., None, :]
    pred, errors = _distances(pred_atom14), []
    for target in (gt, alt):
        difference = torch.sqrt((pred - _distances(target)) ** 2 + _EPS)
        per_atom = torch.sum(mask * difference, dim=-1)
        errors.append(torch.unflatten(per_atom, -1, (exists.shape[-2], -1)).sum(-1))
    better = (errors[1] < errors[0]).to(pred_atom14.dtype)
    atom, xyz = better[..., None], better[..., None, None]
    return {
        "alt_naming_is_better": better,
        "renamed_atom14_gt_positions": (1 - xyz) * gt + xyz * alt,
        "renamed_atom14_gt_exists": (1 - atom) * exists + atom * batch["atom14_alt_gt_exists"],
    }


def _distances(atom14: Tensor) -> Tensor:
    """Distances of the atoms in `_SLOTS` to all atoms, `[*, R*slots, R*14]`."""
    ambiguous, atoms = atom14[..., _SLOTS, :].flatten(-3, -2), atom14.flatten(-3, -2)
    square = torch.sum((ambiguous[..., :, None, :] - atoms[..., None, :, :]) ** 2, dim=-1)
    return torch.sqrt(square + _EPS)

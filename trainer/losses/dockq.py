"""How well the interfaces of a complex are predicted: DockQ.

For validation, on the host: interfaces have any number of residues.
Source: Basu and Wallner 2016.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.losses.metrics import superpose

_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]
_CONTACT = 5.0  # ångström, any atoms
_INTERFACE = 10.0


@torch.no_grad()
def dockq(
    pred: Float[Tensor, "R 37 3"],
    true: Float[Tensor, "R 37 3"],
    mask: Float[Tensor, "R 37"],
    asym_id: Int[Tensor, " R"],
) -> Float[Tensor, ""]:
    """Mean DockQ over all pairs of chains that touch in the truth; nan if none does.

    Predicted chains stand in the truth's order; ångström. `asym_id` is 0 for padding.
    """
    pred, true, known = pred.double(), true.double(), mask > 0
    chains = [asym_id == number for number in torch.unique(asym_id).tolist() if number > 0]
    scores = []
    for one, other in itertools.combinations(chains, 2):
        near = _residue_distances(true, known, one, other)
        contacts = near < _CONTACT
        if contacts.any():
            kept = (_residue_distances(pred, known, one, other) < _CONTACT) & contacts
            interface = torch.zeros_like(one)
            interface[one], interface[other] = (
                (near < _INTERFACE).any(1),
                (near < _INTERFACE).any(0),
            )
            receptor, ligand = (one, other) if one.sum() >= other.sum() else (other, one)
            interface_rmsd = _rmsd(pred, true, known, fitted=interface, measured=interface)
            ligand_rmsd = _rmsd(pred, true, known, fitted=receptor, measured=ligand)
            native = kept.sum() / contacts.sum()
            scores.append((native + _scaled(interface_rmsd, 1.5) + _scaled(ligand_rmsd, 8.5)) / 3)
    return torch.stack(scores).mean() if scores else pred.new_tensor(float("nan"))


def _residue_distances(atoms: Tensor, known: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Least distance of any atoms of each residue of one chain to each of another, `[R, S]`."""
    distance = torch.cdist(atoms[one].flatten(0, 1), atoms[other].flatten(0, 1))
    both = known[one].flatten()[:, None] & known[other].flatten()
    distance = torch.where(both, distance, torch.inf)
    return distance.view(-1, 37, int(other.sum()), 37).amin(dim=(1, 3))


def _rmsd(
    pred: Tensor, true: Tensor, known: Tensor, *, fitted: Tensor, measured: Tensor
) -> Float[Tensor, ""]:
    """Of the backbone of the residues measured, once that of those fitted is superposed."""
    either = (fitted | measured)[:, None] & known[:, _BACKBONE]
    moving, fixed = pred[:, _BACKBONE][either], true[:, _BACKBONE][either]
    fitted, measured = (some[:, None].expand_as(either)[either] for some in (fitted, measured))
    difference = superpose(moving, fixed, fitted.double()) - fixed
    return torch.sqrt(torch.sum(difference[measured] ** 2, dim=-1).mean())


def _scaled(rmsd: Tensor, at: float) -> Tensor:
    return 1 / (1 + (rmsd / at) ** 2)

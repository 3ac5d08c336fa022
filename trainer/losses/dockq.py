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
    chains = [int(c) for c in torch.unique(asym_id).tolist() if c > 0]
    scores = []
    for one, other in itertools.combinations(chains, 2):
        sides = [torch.nonzero(asym_id == c).flatten() for c in (one, other)]
        score = interface_dockq(*([x[side] for side in sides] for x in (pred, true, known)))
        if score is not None:
            scores.append(score)
    return torch.stack(scores).mean() if scores else pred.new_tensor(float("nan"))


def interface_dockq(
    pred: list[Tensor], true: list[Tensor], known: list[Tensor]
) -> Float[Tensor, ""] | None:
    """DockQ of one pair of chains, each `[R, 37, 3]` and `[R, 37]`; None if they do not touch."""
    near = _residue_distances(true, known)
    contacts = near < _CONTACT
    if not contacts.any():
        return None
    kept = (_residue_distances(pred, known) < _CONTACT) & contacts
    native_contacts = kept.sum() / contacts.sum()
    at_interface = [(near < _INTERFACE).any(1), (near < _INTERFACE).any(0)]
    moving, fixed = (_backbone(x, known, at_interface) for x in (pred, true))
    interface_rmsd = _rms(superpose(moving, fixed, torch.ones_like(moving[:, 0])) - fixed)
    return (
        native_contacts + _scaled(interface_rmsd, 1.5) + _scaled(_ligand(pred, true, known), 8.5)
    ) / 3


def _ligand(pred: list[Tensor], true: list[Tensor], known: list[Tensor]) -> Tensor:
    """RMSD of the shorter chain's backbone once the longer one is superposed."""
    receptor = 0 if len(true[0]) >= len(true[1]) else 1
    whole = [torch.ones(len(x), dtype=torch.bool, device=x.device) for x in true]
    weight = [torch.zeros_like(w) if i != receptor else w for i, w in enumerate(whole)]
    moving, fixed = (_backbone(x, known, whole) for x in (pred, true))
    of_receptor = torch.cat([
        w[:, None].expand(-1, 4)[k[:, _BACKBONE]] for w, k in zip(weight, known, strict=True)
    ]).double()  # fmt: skip
    moved = superpose(moving, fixed, of_receptor)
    ligand = of_receptor == 0
    return _rms(moved[ligand] - fixed[ligand])


def _residue_distances(atoms: list[Tensor], known: list[Tensor]) -> Tensor:
    """Least distance of any atoms of each pair of residues, `[R, S]`."""
    distance = torch.cdist(atoms[0].flatten(0, 1), atoms[1].flatten(0, 1))
    both = known[0].flatten()[:, None] & known[1].flatten()[None]
    distance = torch.where(both, distance, torch.inf)
    return distance.view(len(atoms[0]), 37, len(atoms[1]), 37).amin(dim=(1, 3))


def _backbone(atoms: list[Tensor], known: list[Tensor], residues: list[Tensor]) -> Tensor:
    """Known backbone atoms of the chosen residues of both chains, `[n, 3]`."""
    parts = [
        x[:, _BACKBONE][k[:, _BACKBONE] & r[:, None]]
        for x, k, r in zip(atoms, known, residues, strict=True)
    ]
    return torch.cat(parts)


def _rms(difference: Tensor) -> Tensor:
    return torch.sqrt(torch.sum(difference**2, dim=-1).mean())


def _scaled(rmsd: Tensor, at: float) -> Tensor:
    return 1 / (1 + (rmsd / at) ** 2)

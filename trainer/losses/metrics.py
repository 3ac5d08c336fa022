"""Metrics of a predicted structure against the true one: by CA atoms, and DockQ of interfaces.

Not for the training path: the superposition takes a few small matrix
decompositions, and interfaces have any number of residues. Letters: R residues.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.losses.lddt import lddt

_CA = ATOM_ORDER["CA"]
_TM_ROUNDS = 10
_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]
_CONTACT = 5.0  # ångström, any atoms
_INTERFACE = 10.0


@torch.no_grad()
def structure_metrics(
    all_atom_pred_pos: Float[Tensor, "*B R 37 3"],
    all_atom_positions: Float[Tensor, "*B R 37 3"],
    all_atom_mask: Float[Tensor, "*B R 37"],
) -> dict[str, Float[Tensor, "*B"]]:
    """`lddt_ca` (0 to 1), `drmsd_ca` and `rmsd_ca` in ångström, `tm_score` (0 to 1).

    All are nan for a prediction that is not finite.
    """
    pred, true = all_atom_pred_pos[..., _CA, :].double(), all_atom_positions[..., _CA, :].double()
    mask = all_atom_mask[..., _CA].double()
    finite = pred.isfinite().all(dim=-1).all(dim=-1)
    pred = torch.where(finite[..., None, None], pred, 0.0)  # else no decomposition converges
    metrics = {
        "lddt_ca": lddt(pred, true, mask, per_residue=False),
        "drmsd_ca": drmsd(pred, true, mask),
        "rmsd_ca": rmsd(pred, true, mask),
        "tm_score": tm_score(pred, true, mask),
    }
    return {name: torch.where(finite, value, torch.nan) for name, value in metrics.items()}


def drmsd(
    pred: Float[Tensor, "*B R 3"], true: Float[Tensor, "*B R 3"], mask: Float[Tensor, "*B R"]
) -> Float[Tensor, "*B"]:
    """Root mean square difference of all distances, ångström; blind to mirror images."""
    difference = torch.cdist(pred, pred) - torch.cdist(true, true)
    pair_mask = mask[..., :, None] * mask[..., None, :]
    pair_mask = pair_mask * (1 - torch.eye(mask.shape[-1], device=mask.device, dtype=mask.dtype))
    total = torch.sum(pair_mask * difference**2, dim=(-1, -2))
    return torch.sqrt(total / torch.sum(pair_mask, dim=(-1, -2)).clamp(min=1))


def rmsd(
    pred: Float[Tensor, "*B R 3"], true: Float[Tensor, "*B R 3"], mask: Float[Tensor, "*B R"]
) -> Float[Tensor, "*B"]:
    """Root mean square distance after the best superposition, ångström."""
    square = torch.sum((superpose(pred, true, mask) - true) ** 2, dim=-1)
    return torch.sqrt(torch.sum(mask * square, dim=-1) / torch.sum(mask, dim=-1).clamp(min=1))


def tm_score(
    pred: Float[Tensor, "*B R 3"], true: Float[Tensor, "*B R 3"], mask: Float[Tensor, "*B R"]
) -> Float[Tensor, "*B"]:
    """TM-score over the residues present, 0 to 1, 0.5 being the same fold.

    The superposition that maximises it is sought by reweighting from the
    all-residue one, so this is a lower bound of TM-align's search.
    Source: Zhang and Skolnick 2004.
    """
    count = torch.sum(mask, dim=-1).clamp(min=1)
    d0 = (1.24 * (count.clamp(min=19) - 15) ** (1 / 3) - 1.8)[..., None]
    weight, best = mask, torch.zeros_like(count)
    for _ in range(_TM_ROUNDS):
        square = torch.sum((superpose(pred, true, weight) - true) ** 2, dim=-1)
        term = mask / (1 + square / d0**2)
        best = torch.maximum(best, torch.sum(term, dim=-1) / count)
        weight = term**2  # the derivative of the score by the square distance
    return best


def superpose(
    pred: Float[Tensor, "*B R 3"], true: Float[Tensor, "*B R 3"], weight: Float[Tensor, "*B R"]
) -> Float[Tensor, "*B R 3"]:
    """`pred` moved rigidly onto `true`, least weighted squares. Source: Kabsch 1976."""
    share = (weight / torch.sum(weight, dim=-1, keepdim=True).clamp(min=1e-12))[..., None]
    centre_pred = torch.sum(share * pred, dim=-2, keepdim=True)
    centre_true = torch.sum(share * true, dim=-2, keepdim=True)
    covariance = (share * (pred - centre_pred)).transpose(-1, -2) @ (true - centre_true)
    u, _, vh = torch.linalg.svd(covariance)
    mirror = torch.ones_like(covariance[..., 0])
    mirror[..., 2] = torch.sign(torch.linalg.det(u @ vh))  # a rotation, never a reflection
    rotated: Tensor = (pred - centre_pred) @ (u * mirror[..., None, :]) @ vh
    return rotated + centre_true


@torch.no_grad()
def dockq(
    pred: Float[Tensor, "R 37 3"],
    true: Float[Tensor, "R 37 3"],
    mask: Float[Tensor, "R 37"],
    asym_id: Int[Tensor, " R"],
) -> Float[Tensor, ""]:
    """Mean DockQ over all pairs of chains that touch in the truth; nan if none does.

    Predicted chains stand in the truth's order; ångström. `asym_id` is 0 for padding.
    Source: Basu and Wallner 2016.
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
            close = near < _INTERFACE
            interface[one], interface[other] = close.any(1), close.any(0)
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

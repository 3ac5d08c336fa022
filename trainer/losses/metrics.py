"""Metrics of a predicted structure against the truth: of CA atoms, and DockQ of interfaces.

Not for training steps: superposition takes a few small matrix decompositions, and
interfaces have any number of residues. Letters: R residues.
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
    pred = torch.where(finite[..., None, None], pred, 0.0)  # decompositions of nan fail
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
    """Root mean square difference of all distances, ångström; the same for mirror images."""
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

    The superposition is improved by reweighting, starting with that of all residues,
    so this is a lower bound of TM-align's search.
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
    """`pred` superposed on `true` by weighted least squares. Source: Kabsch 1976."""
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
    """Mean DockQ over all pairs of chains in contact in the truth; nan if there are none.

    Predicted chains are in the truth's order; positions in ångström. `asym_id` is 0 for padding.
    Source: Basu and Wallner 2016.
    """
    pred, true, resolved = pred.double(), true.double(), mask > 0
    chains = [asym_id == number for number in torch.unique(asym_id).tolist() if number > 0]
    scores = []
    for chain, other in itertools.combinations(chains, 2):
        distances = _residue_distances(true, resolved, chain, other)
        native = distances < _CONTACT
        if native.any():
            predicted = _residue_distances(pred, resolved, chain, other) < _CONTACT
            interface = torch.zeros_like(chain)
            close = distances < _INTERFACE
            interface[chain], interface[other] = close.any(1), close.any(0)
            receptor, ligand = (chain, other) if chain.sum() >= other.sum() else (other, chain)
            interface_rmsd = _rmsd(pred, true, resolved, fitted=interface, measured=interface)
            ligand_rmsd = _rmsd(pred, true, resolved, fitted=receptor, measured=ligand)
            fnat = (predicted & native).sum() / native.sum()
            scores.append((fnat + _scaled(interface_rmsd, 1.5) + _scaled(ligand_rmsd, 8.5)) / 3)
    return torch.stack(scores).mean() if scores else pred.new_tensor(float("nan"))


def _residue_distances(atoms: Tensor, resolved: Tensor, chain: Tensor, other: Tensor) -> Tensor:
    """Minimum atom-atom distances of all residue pairs of two chains, `[R, S]`."""
    distance = torch.cdist(atoms[chain].flatten(0, 1), atoms[other].flatten(0, 1))
    pair_mask = resolved[chain].flatten()[:, None] & resolved[other].flatten()
    distance = torch.where(pair_mask, distance, torch.inf)
    return distance.view(-1, 37, int(other.sum()), 37).amin(dim=(1, 3))


def _rmsd(
    pred: Tensor, true: Tensor, resolved: Tensor, *, fitted: Tensor, measured: Tensor
) -> Float[Tensor, ""]:
    """Backbone RMSD of the `measured` residues after superposition of the `fitted` ones."""
    atoms = (fitted | measured)[:, None] & resolved[:, _BACKBONE]
    moving, fixed = pred[:, _BACKBONE][atoms], true[:, _BACKBONE][atoms]
    fitted, measured = (mask[:, None].expand_as(atoms)[atoms] for mask in (fitted, measured))
    difference = superpose(moving, fixed, fitted.double()) - fixed
    return torch.sqrt(torch.sum(difference[measured] ** 2, dim=-1).mean())


def _scaled(rmsd: Tensor, scale: float) -> Tensor:
    return 1 / (1 + (rmsd / scale) ** 2)

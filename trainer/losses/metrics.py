"""How close a predicted structure is to the true one, by its CA atoms.

Not for the training path: the superposition takes a few small matrix
decompositions. Letters: R residues.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Float
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.losses.lddt import lddt

_CA = ATOM_ORDER["CA"]
_TM_ROUNDS = 10


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

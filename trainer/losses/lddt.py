"""lDDT-Ca: the share of preserved distances to neighbours; and the loss of the pLDDT head.

Source: Mariani et al. 2013; AF2 SI 1.9.6, algorithm 29. Letters: R residues.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.losses.cross_entropy import resolution_gate, softmax_cross_entropy
from evofeed.trainer.model.config import LossConfig

_CA = ATOM_ORDER["CA"]


def lddt(
    pred: Float[Tensor, "*B R 3"],
    true: Float[Tensor, "*B R 3"],
    mask: Float[Tensor, "*B R"],
    *,
    cutoff: float = 15.0,
    eps: float = 1e-10,
    per_residue: bool = True,
    between: Int[Tensor, "*B R"] | None = None,
) -> Tensor:
    """lDDT of points, 0 to 1, per residue `[*, R]` or over all `[*]`.

    A distance counts if it is below `cutoff` ångström in the true structure;
    the score is the mean over tolerances 0.5, 1, 2 and 4 Å. A residue without
    neighbours scores 1; with `eps` 0, nan. With `between`, numbers of chains, only
    distances between two chains count.
    """
    true_distance, pred_distance = _distances(true, eps), _distances(pred, eps)
    not_self = 1 - torch.eye(mask.shape[-1], device=mask.device, dtype=mask.dtype)
    scored = (true_distance < cutoff) * mask[..., :, None] * mask[..., None, :] * not_self
    if between is not None:
        scored = scored * (between[..., :, None] != between[..., None, :])
    error = torch.abs(true_distance - pred_distance)
    preserved = sum((error < tolerance).to(pred.dtype) for tolerance in (0.5, 1.0, 2.0, 4.0))
    dims = (-1,) if per_residue else (-2, -1)
    total = torch.sum(scored * preserved * 0.25, dim=dims)
    return (eps + total) / (eps + torch.sum(scored, dim=dims))


def lddt_loss(
    logits: Float[Tensor, "*B R n"],
    all_atom_pred_pos: Float[Tensor, "*B R 37 3"],
    all_atom_positions: Float[Tensor, "*B R 37 3"],
    all_atom_mask: Float[Tensor, "*B R 37"],
    resolution: Float[Tensor, "*B"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Cross-entropy of the head's bins with the lDDT-Ca of the (detached) prediction."""
    no_bins = logits.shape[-1]
    with torch.no_grad():
        pred, true = all_atom_pred_pos[..., _CA, :], all_atom_positions[..., _CA, :]
        cutoff, eps = config.plddt_cutoff, config.eps
        score = lddt(pred, true, all_atom_mask[..., _CA], cutoff=cutoff, eps=eps)
        true_bin = torch.floor(score * no_bins).long().clamp(max=no_bins - 1)
    mask = all_atom_mask[..., _CA]
    errors = softmax_cross_entropy(logits, true_bin) * mask
    loss = torch.sum(errors, dim=-1) / (config.eps + torch.sum(mask, dim=-1))
    return loss * resolution_gate(resolution, config)


def _distances(points: Tensor, eps: float) -> Tensor:
    square = torch.sum((points[..., :, None, :] - points[..., None, :, :]) ** 2, dim=-1)
    return torch.sqrt(square + eps)

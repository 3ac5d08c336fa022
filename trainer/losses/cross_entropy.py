"""Cross-entropy losses: distogram, masked MSA, experimentally resolved atoms, aligned error.

Source: AF2 SI 1.9.7 to 1.9.10. Letters: S sequences, R residues.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.config import LossConfig
from evofeed.trainer.model.rigid import from_4x4, from_frames, invert_apply


def softmax_cross_entropy(
    logits: Float[Tensor, "*B n"], target: Int[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """-log p(target)."""
    log_probs = F.log_softmax(logits, dim=-1)
    return -torch.gather(log_probs, -1, target[..., None])[..., 0]


def resolution_gate(resolution: Float[Tensor, "*B"], config: LossConfig) -> Float[Tensor, "*B"]:
    """1 for structures in the range of resolution that trains the confidence heads, else 0."""
    inside = (resolution >= config.min_resolution) & (resolution <= config.max_resolution)
    return inside.to(resolution.dtype)


def distogram_loss(
    logits: Float[Tensor, "*B R R n"],
    pseudo_beta: Float[Tensor, "*B R 3"],
    pseudo_beta_mask: Float[Tensor, "*B R"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Mean over residue pairs. Source: AF2 SI 1.9.8, equation 41."""
    bins = config.distogram_min_bin, config.distogram_max_bin, logits.shape[-1] - 1
    edges = torch.linspace(*bins, device=logits.device, dtype=pseudo_beta.dtype)
    difference = pseudo_beta[..., :, None, :] - pseudo_beta[..., None, :, :]
    true_bin = _bin_of_square(torch.sum(difference**2, dim=-1), edges)
    mask = pseudo_beta_mask[..., :, None] * pseudo_beta_mask[..., None, :]
    errors = softmax_cross_entropy(logits, true_bin) * mask
    return torch.sum(errors, dim=(-1, -2)) / (config.eps + torch.sum(mask, dim=(-1, -2)))


def masked_msa_loss(
    logits: Float[Tensor, "*B S R n"],
    true_msa: Int[Tensor, "*B S R"],
    bert_mask: Float[Tensor, "*B S R"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Mean over the masked cells. Source: AF2 SI 1.9.9, equation 42."""
    errors = softmax_cross_entropy(logits, true_msa) * bert_mask
    # OpenFold halves numerator and count but not eps, so its eps counts twice.
    return torch.sum(errors, dim=(-1, -2)) / (2 * config.eps + torch.sum(bert_mask, dim=(-1, -2)))


def experimentally_resolved_loss(
    logits: Float[Tensor, "*B R 37"],
    atom37_atom_exists: Float[Tensor, "*B R 37"],
    all_atom_mask: Float[Tensor, "*B R 37"],
    resolution: Float[Tensor, "*B"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Binary cross-entropy, mean over the existing atoms. Source: AF2 SI 1.9.10, equation 43."""
    log_p, log_not_p = F.logsigmoid(logits), F.logsigmoid(-logits)
    errors = -all_atom_mask * log_p - (1 - all_atom_mask) * log_not_p
    total = torch.sum(errors * atom37_atom_exists, dim=(-1, -2))
    loss = total / (config.eps + torch.sum(atom37_atom_exists, dim=(-1, -2)))
    return loss * resolution_gate(resolution, config)


def aligned_error_loss(
    logits: Float[Tensor, "*B R R n"],
    final_affine_tensor: Float[Tensor, "..."],
    backbone_rigid_tensor: Float[Tensor, "*B R 4 4"],
    backbone_rigid_mask: Float[Tensor, "*B R"],
    resolution: Float[Tensor, "*B"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """OpenFold's `tm` loss: cross-entropy of the binned error of each CA in each frame.

    Source: AF2 SI 1.9.7.
    """
    with torch.no_grad():
        pred, target = from_frames(final_affine_tensor), from_4x4(backbone_rigid_tensor)
        local = [
            invert_apply(frames.unsqueeze(-1), frames.trans[..., None, :, :])
            for frames in (pred, target)
        ]
        bins = 0, config.tm_max_bin, logits.shape[-1] - 1
        edges = torch.linspace(*bins, device=logits.device, dtype=target.trans.dtype)
        true_bin = _bin_of_square(torch.sum((local[0] - local[1]) ** 2, dim=-1), edges)
    mask = backbone_rigid_mask[..., :, None] * backbone_rigid_mask[..., None, :]
    errors = softmax_cross_entropy(logits, true_bin) * mask
    loss = torch.sum(errors, dim=(-1, -2)) / (2 * config.eps + torch.sum(mask, dim=(-1, -2)))
    return loss * resolution_gate(resolution, config)


def _bin_of_square(square: Tensor, edges: Tensor) -> Tensor:
    """Number of edges below each distance, given its square."""
    return torch.bucketize(square, edges**2)

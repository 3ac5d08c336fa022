"""Side-chain torsion angles. Source: AF2 SI 1.9.1, algorithm 27. Letters: R residues, L layers."""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.config import LossConfig
from evofeed.trainer.model.constants import table

_MEAN_EPS = 1e-4


def supervised_chi(
    angles: Float[Tensor, "L *B R 7 2"],
    unnormalized_angles: Float[Tensor, "L *B R 7 2"],
    aatype: Int[Tensor, "*B R"],
    seq_mask: Float[Tensor, "*B R"],
    chi_mask: Float[Tensor, "*B R 4"],
    chi_angles_sin_cos: Float[Tensor, "*B R 4 2"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Squared error of the chi angles (modulo pi for symmetric side chains), plus the deviation
    of the raw angle vectors from unit length; both averaged over layers.
    """
    periodic = table("CHI_PI_PERIODIC", angles.device, angles.dtype)[aatype]
    shifted = (1 - 2 * periodic)[..., None] * chi_angles_sin_cos
    chi = angles[..., 3:, :]
    error = torch.sum((chi_angles_sin_cos - chi) ** 2, dim=-1)
    error = torch.minimum(error, torch.sum((shifted - chi) ** 2, dim=-1))
    norm = torch.sqrt(torch.sum(unnormalized_angles**2, dim=-1) + config.eps)
    norm_error = _layer_mean(torch.abs(norm - 1), seq_mask[..., None])
    error = _layer_mean(error, chi_mask)
    return config.chi_weight * error + config.angle_norm_weight * norm_error


def _layer_mean(value: Float[Tensor, "L *B R a"], mask: Float[Tensor, "*B R b"]) -> Tensor:
    """Masked mean over layers, residues and angles."""
    total = torch.sum(value * mask, dim=(0, -2, -1))
    count = torch.sum(mask, dim=(-2, -1)) * (value.shape[0] * value.shape[-1] // mask.shape[-1])
    return total / (_MEAN_EPS + count)

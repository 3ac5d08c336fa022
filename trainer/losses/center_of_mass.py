"""Chain centre-of-mass loss: penalises chains closer to each other than in the truth.

Source: AlphaFold-Multimer, section 2.5, equation 1. Letters: R residues.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.model.config import LossConfig

_CA = ATOM_ORDER["CA"]
_MEAN_EPS = 1e-4


def chain_center_of_mass_loss(
    all_atom_pred_pos: Float[Tensor, "*B R 37 3"],
    all_atom_positions: Float[Tensor, "*B R 37 3"],
    all_atom_mask: Float[Tensor, "*B R 37"],
    asym_id: Int[Tensor, "*B R"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """Squared shortfall of the distance of two chains, mean over all pairs of chains.

    Chains are not counted, which would wait for the GPU: the mean runs over pairs of residues,
    weighted by one over the sizes of their chains. A chain forms a pair with itself too, as in
    OpenFold. Positions are in ångström; only CA atoms are used.
    """
    eps = config.eps  # in the centres' denominators and, squared, below a square distance
    mask = all_atom_mask[..., _CA].to(all_atom_positions.dtype)
    same = (asym_id[..., :, None] == asym_id[..., None, :]).to(mask.dtype) * mask[..., None, :]
    count = torch.sum(same, dim=-1, keepdim=True)
    distances = []
    for atoms in (all_atom_pred_pos, all_atom_positions):
        centre = torch.sum(same[..., None] * atoms[..., None, :, _CA, :], dim=-2) / (count + eps)
        square = torch.sum((centre[..., :, None, :] - centre[..., None, :, :]) ** 2, dim=-1)
        distances.append(torch.sqrt(torch.clamp(square, min=eps**2)))
    shortfall = distances[0] - distances[1] - config.chain_center_of_mass_clamp_distance
    shortfall = torch.clamp(config.chain_center_of_mass_scale * shortfall, max=0)
    share = mask / count[..., 0].clamp(min=1)  # adds up to 1 over a chain
    weight = share[..., :, None] * share[..., None, :]
    total = torch.sum(weight * shortfall**2, dim=(-1, -2))
    return total / (_MEAN_EPS + torch.sum(weight, dim=(-1, -2)))

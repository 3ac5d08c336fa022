"""Pseudo-beta atoms (CB, CA of glycine), between which residue distances are measured, in torch."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Integer
from evofeed.protein.residues import ATOM_ORDER, RESTYPES

_GLYCINE: Final = RESTYPES.index("G")
_CA, _CB = ATOM_ORDER["CA"], ATOM_ORDER["CB"]


def pseudo_beta(
    aatype: Integer[Tensor, "*L"], positions: Float[Tensor, "*L 37 3"]
) -> Float[Tensor, "*L 3"]:
    """CB of each residue, CA of glycine; ångström."""
    glycine = (aatype == _GLYCINE)[..., None]
    return torch.where(glycine, positions[..., _CA, :], positions[..., _CB, :])


def pseudo_beta_mask(
    aatype: Integer[Tensor, "*L"], mask: Float[Tensor, "*L 37"]
) -> Float[Tensor, "*L"]:
    """1 where that atom is resolved."""
    return torch.where(aatype == _GLYCINE, mask[..., _CA], mask[..., _CB])

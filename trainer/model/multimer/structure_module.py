"""The structure module of complexes: frames are rotation matrices, updates are composed.

Source: AlphaFold-Multimer's code. Letters: R residues, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Float
from evofeed.trainer.model.multimer.ipa import InvariantPointAttentionMultimer
from evofeed.trainer.model.primitives import exact_products
from evofeed.trainer.model.rigid import Rigid, compose, quaternion_to_matrix, to_4x4
from evofeed.trainer.model.structure_module import StructureModule

_LEAST_SQUARE_NORM = 1e-6


def update_to_rigid(update: Float[Tensor, "*B 6"]) -> Rigid:
    """The motion that six numbers stand for: the quaternion (1, x, y, z) and a translation."""
    x = update[..., :3]
    quaternion = torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)
    square = torch.sum(quaternion**2, dim=-1, keepdim=True)
    unit = quaternion * torch.rsqrt(torch.clamp(square, min=_LEAST_SQUARE_NORM))
    return Rigid(quaternion_to_matrix(unit), update[..., 3:])


class StructureModuleMultimer(StructureModule):
    """As `StructureModule`, but `frames` are `[L, *, R, 4, 4]`: no quaternion is kept."""

    ipa_class = InvariantPointAttentionMultimer

    def _origin(self, s: Tensor) -> tuple[Tensor, Rigid]:
        trans = torch.zeros_like(s[..., :3])
        identity = torch.eye(3, dtype=s.dtype, device=s.device)
        return trans, Rigid(identity.expand(*trans.shape, 3), trans)

    def _moved(self, quaternion: Tensor, frames: Rigid, update: Tensor) -> tuple[Tensor, Rigid]:
        with exact_products():
            return quaternion, compose(frames, update_to_rigid(update))

    def _output(self, quaternion: Tensor, frames: Rigid) -> Tensor:
        return to_4x4(Rigid(frames.rots, frames.trans * self.trans_scale_factor))

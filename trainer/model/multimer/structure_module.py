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
    """As `StructureModule`, but `frames` are `[L, *, R, 4, 4]` and there are no `states`."""

    ipa_class = InvariantPointAttentionMultimer

    def _run(self, single: Tensor, pair: Tensor, aatype: Tensor, mask: Tensor) -> dict[str, Tensor]:
        s_initial = self.layer_norm_s(single)
        z = self.layer_norm_z(pair)
        s = self.linear_in(s_initial)
        trans = torch.zeros_like(s[..., :3])
        identity = torch.eye(3, dtype=s.dtype, device=s.device)
        now = Rigid(identity.expand(*trans.shape, 3), trans)
        states, frames = [], []
        shared = self.ipa.share(z, mask)
        for _ in range(self.no_blocks):
            s = s + self.ipa(s, z, now, mask, shared)
            s = self.transition(self.layer_norm_ipa(self.ipa_dropout(s)))
            with exact_products():
                now = compose(now, update_to_rigid(self.bb_update(s)))
            states.append(s)
            frames.append(Rigid(now.rots, now.trans * self.trans_scale_factor))
            now = Rigid(now.rots.detach(), now.trans)  # no gradient through the chain of rotations
        all_frames = Rigid(
            torch.stack([f.rots for f in frames]), torch.stack([f.trans for f in frames])
        )
        atoms = self._atoms(torch.stack(states), all_frames, s_initial, aatype)
        return {"frames": to_4x4(all_frames), **atoms, "single": s}

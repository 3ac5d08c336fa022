"""The structure module: predicts atom positions from the single and pair representations.

It runs outside autocast, at least in float32: a rotation in bfloat16 has an error
of half a degree, which is ångströms at the far end of a protein.
Source: AF2 SI 1.8, algorithm 20. Letters: R residues, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.compiled import compilable
from evofeed.trainer.model.config import StructureModuleConfig
from evofeed.trainer.model.ipa import InvariantPointAttention, InvariantPointAttentionMultimer
from evofeed.trainer.model.primitives import (
    ExactLinear,
    LayerNorm,
    SharedDropout,
    at_least_float32,
    exact_products,
    full_precision,
)
from evofeed.trainer.model.rigid import (
    Rigid,
    compose,
    compose_quaternion_update,
    from_frames,
    quaternion_to_matrix,
    to_4x4,
)
from evofeed.trainer.model.torsion import AngleResnet, frames_to_atom14, torsion_angles_to_frames

_LEAST_SQUARE_NORM = 1e-6


class BackboneUpdate(nn.Module):
    """Six numbers per residue: vector part of a quaternion, translation. Source: algorithm 23."""

    def __init__(self, c_s: int) -> None:
        super().__init__()
        self.linear = ExactLinear(c_s, 6, init="final")

    def forward(self, s: Float[Tensor, "*B R c_s"]) -> Float[Tensor, "*B R 6"]:
        """The update, which `update_frames` applies."""
        return self.linear(s)  # type: ignore[no-any-return]


@compilable
def update_frames(
    quaternion: Float[Tensor, "*B 4"],
    frames: Rigid,
    update: Float[Tensor, "*B 6"],
) -> tuple[Float[Tensor, "*B 4"], Rigid]:
    """Quaternion and frames after a backbone update in the old local frame.

    `frames` are the old ones; their rotations equal `quaternion`.
    """
    step = torch.sum(frames.rots * update[..., None, 3:], dim=-1)
    quaternion = compose_quaternion_update(quaternion, update[..., :3])
    return quaternion, Rigid(quaternion_to_matrix(quaternion), frames.trans + step)


class StructureModuleTransitionLayer(nn.Module):
    """Three linear layers with a residual connection."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.linear_1 = ExactLinear(c, c, init="relu")
        self.linear_2 = ExactLinear(c, c, init="relu")
        self.linear_3 = ExactLinear(c, c, init="final")

    def forward(self, s: Float[Tensor, "*B c"]) -> Float[Tensor, "*B c"]:
        """`s` plus its update."""
        hidden = self.linear_2(self.linear_1(s, relu=True), relu=True)
        return s + self.linear_3(hidden)  # type: ignore[no-any-return]


class StructureModuleTransition(nn.Module):
    """Transition layers, dropout, layer norm. Source: algorithm 20, lines 8 and 9."""

    def __init__(self, c: int, num_layers: int, dropout_rate: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(StructureModuleTransitionLayer(c) for _ in range(num_layers))
        self.dropout = SharedDropout(dropout_rate)
        self.layer_norm = LayerNorm(c)

    def forward(self, s: Float[Tensor, "*B c"]) -> Float[Tensor, "*B c"]:
        """The single representation after the transition."""
        for layer in self.layers:
            s = layer(s)
        return self.layer_norm(self.dropout(s))  # type: ignore[no-any-return]


class StructureModule(nn.Module):
    """Eight layers with shared weights that move every residue's frame, starting at the origin.

    Inside, translations are in units of `trans_scale_factor` ångström; outputs are in ångström.
    """

    ipa_class: type[InvariantPointAttention] = InvariantPointAttention

    def __init__(self, config: StructureModuleConfig, c_s: int, c_z: int) -> None:
        super().__init__()
        self.no_blocks = config.no_blocks
        self.trans_scale_factor = config.trans_scale_factor
        self.layer_norm_s = LayerNorm(c_s)
        self.layer_norm_z = LayerNorm(c_z)
        self.linear_in = ExactLinear(c_s, c_s)
        self.ipa = self.ipa_class(
            c_s, c_z, config.c_ipa, config.no_heads_ipa, config.no_qk_points, config.no_v_points,
            config.inf, config.epsilon,
        )  # fmt: skip
        self.ipa_dropout = SharedDropout(config.dropout_rate)
        self.layer_norm_ipa = LayerNorm(c_s)
        self.transition = StructureModuleTransition(
            c_s, config.no_transition_layers, config.dropout_rate
        )
        self.bb_update = BackboneUpdate(c_s)
        self.angle_resnet = AngleResnet(
            c_s, config.c_resnet, config.no_resnet_blocks, config.no_angles, config.epsilon
        )

    def forward(
        self,
        single: Float[Tensor, "*B R c_s"],
        pair: Float[Tensor, "*B R R c_z"],
        aatype: Int[Tensor, "*B R"],
        mask: Float[Tensor, "*B R"],
    ) -> dict[str, Tensor]:
        """The structure after every layer.

        Returns:
            `frames [L, *, R, 7]` (quaternion w x y z, then ångström),
            `sidechain_frames [L, *, R, 8, 4, 4]`, `positions [L, *, R, 14, 3]`,
            `angles` and `unnormalized_angles [L, *, R, 7, 2]`, `states
            [L, *, R, c_s]`, and `single [*, R, c_s]`, the last state.
        """
        with full_precision(single):
            single, pair = at_least_float32(single), at_least_float32(pair)
            return self._run(single, pair, aatype, mask.to(single.dtype))

    def _run(self, single: Tensor, pair: Tensor, aatype: Tensor, mask: Tensor) -> dict[str, Tensor]:
        s_initial = self.layer_norm_s(single)
        z = self.layer_norm_z(pair)
        s = self.linear_in(s_initial)
        quaternion, old = self._origin(s)
        states, frames = [], []
        shared = self.ipa.share(z, mask)
        for _ in range(self.no_blocks):
            s = s + self.ipa(s, z, old, mask, shared)
            s = self.transition(self.layer_norm_ipa(self.ipa_dropout(s)))
            quaternion, new = self._moved(quaternion, old, self.bb_update(s))
            states.append(s)
            frames.append(self._output(quaternion, new))
            # No gradient through the chain of rotations.
            quaternion, old = quaternion.detach(), Rigid(new.rots.detach(), new.trans)
        all_states, all_frames = torch.stack(states), torch.stack(frames)
        atoms = self._atoms(all_states, from_frames(all_frames), s_initial, aatype)
        return {"frames": all_frames, **atoms, "states": all_states, "single": states[-1]}

    def _origin(self, s: Tensor) -> tuple[Tensor, Rigid]:
        """Quaternion and frame of every residue before the first layer."""
        trans = torch.zeros_like(s[..., :3])
        quaternion = torch.cat([trans[..., :1] + 1, trans], dim=-1)
        return quaternion, Rigid(quaternion_to_matrix(quaternion), trans)

    def _moved(self, quaternion: Tensor, frames: Rigid, update: Tensor) -> tuple[Tensor, Rigid]:
        return update_frames(quaternion, frames, update)

    def _output(self, quaternion: Tensor, frames: Rigid) -> Tensor:
        return torch.cat([quaternion, frames.trans * self.trans_scale_factor], dim=-1)

    def _atoms(
        self, states: Tensor, frames: Rigid, s_initial: Tensor, aatype: Tensor
    ) -> dict[str, Tensor]:
        """Side chains of all layers at once: no layer depends on the atoms of an earlier one."""
        unnormalized, angles = self.angle_resnet(states, s_initial.expand_as(states))
        aatype = aatype.expand(states.shape[:-1])
        groups = torsion_angles_to_frames(frames, angles, aatype)
        return {
            "sidechain_frames": to_4x4(groups),
            "unnormalized_angles": unnormalized,
            "angles": angles,
            "positions": frames_to_atom14(groups, aatype),
        }


def update_to_rigid(update: Float[Tensor, "*B 6"]) -> Rigid:
    """The transform of a backbone update: the quaternion (1, x, y, z) and a translation."""
    x = update[..., :3]
    quaternion = torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)
    square = torch.sum(quaternion**2, dim=-1, keepdim=True)
    unit = quaternion * torch.rsqrt(torch.clamp(square, min=_LEAST_SQUARE_NORM))
    return Rigid(quaternion_to_matrix(unit), update[..., 3:])


class StructureModuleMultimer(StructureModule):
    """The structure module of AlphaFold-Multimer's code: updates are composed as matrices.

    `frames` are `[L, *, R, 4, 4]`.
    """

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

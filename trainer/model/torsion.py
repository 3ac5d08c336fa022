"""Torsion angles: the network that predicts them, and atom positions from them.

Rigid groups: 0 backbone, 1 pre-omega, 2 phi, 3 psi, 4 to 7 chi1 to chi4. Angles
are (sin, cos) pairs in the order omega, phi, psi, chi1 to chi4.
Source: AF2 SI 1.8.4, algorithms 20 (lines 11 to 14) and 24 to 25.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.constants import table
from evofeed.trainer.model.primitives import ExactLinear, one_hot
from evofeed.trainer.model.rigid import Rigid, apply, compose, from_4x4


class AngleResnetBlock(nn.Module):
    """Two ReLU layers with a residual connection."""

    def __init__(self, c_hidden: int) -> None:
        super().__init__()
        self.linear_1 = ExactLinear(c_hidden, c_hidden, init="relu")
        self.linear_2 = ExactLinear(c_hidden, c_hidden, init="final")

    def forward(self, a: Float[Tensor, "*B c"]) -> Float[Tensor, "*B c"]:
        """`a` plus its update."""
        return a + self.linear_2(self.linear_1(torch.relu(a), relu=True))  # type: ignore[no-any-return]


class AngleResnet(nn.Module):
    """The seven torsion angles of every residue, before and after normalisation."""

    def __init__(
        self, c_in: int, c_hidden: int, no_blocks: int, no_angles: int, epsilon: float = 1e-8
    ) -> None:
        super().__init__()
        self.no_angles = no_angles
        self.eps = epsilon
        self.linear_in = ExactLinear(c_in, c_hidden)
        self.linear_initial = ExactLinear(c_in, c_hidden)
        self.layers = nn.ModuleList(AngleResnetBlock(c_hidden) for _ in range(no_blocks))
        self.linear_out = ExactLinear(c_hidden, no_angles * 2)

    def forward(
        self, s: Float[Tensor, "*B R c_s"], s_initial: Float[Tensor, "*B R c_s"]
    ) -> tuple[Float[Tensor, "*B R 7 2"], Float[Tensor, "*B R 7 2"]]:
        """Unnormalised and normalised (sin, cos) of each angle."""
        a = self.linear_initial(torch.relu(s_initial)) + self.linear_in(torch.relu(s))
        for layer in self.layers:
            a = layer(a)
        angles = self.linear_out(torch.relu(a))
        angles = torch.unflatten(angles, -1, (self.no_angles, 2))
        square = torch.sum(angles**2, dim=-1, keepdim=True)
        return angles, angles / torch.sqrt(torch.clamp(square, min=self.eps))


def torsion_angles_to_frames(
    backbone: Rigid, angles: Float[Tensor, "*B R 7 2"], aatype: Int[Tensor, "*B R"]
) -> Rigid:
    """Global frames of the 8 rigid groups of each residue, `[*, R, 8]`.

    Angles are (sin, cos), normalised.
    """
    default = from_4x4(table("DEFAULT_FRAMES", angles.device, angles.dtype)[aatype])
    zero = torch.zeros_like(angles[..., :1, 0])  # group 0, the backbone, has no torsion
    sin = torch.cat([zero, angles[..., 0]], dim=-1)
    cos = torch.cat([zero + 1, angles[..., 1]], dim=-1)
    local = Rigid(_rotate_default_about_x(default.rots, sin, cos), default.trans)
    # unbind: its backward is one stack; that of eight slices makes eight tensors of zeros.
    groups = [
        Rigid(rots, trans)
        for rots, trans in zip(local.rots.unbind(-3), local.trans.unbind(-2), strict=True)
    ]
    for chi in (5, 6, 7):  # chi2 to chi4 rotate in the frame of the previous chi
        groups[chi] = compose(groups[chi - 1], groups[chi])
    local = Rigid(
        torch.stack([g.rots for g in groups], dim=-3),
        torch.stack([g.trans for g in groups], dim=-2),
    )
    return compose(backbone.unsqueeze(-1), local)


def _rotate_default_about_x(rots: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """rots times a rotation about x: its second and third columns mixed."""
    x, y, z = torch.unbind(rots, dim=-1)
    sin, cos = sin[..., None], cos[..., None]
    return torch.stack([x, y * cos + z * sin, z * cos - y * sin], dim=-1)


def frames_to_atom14(frames: Rigid, aatype: Int[Tensor, "*B R"]) -> Float[Tensor, "*B R 14 3"]:
    """Atom positions from the 8 group frames and the ideal local geometry; 0 for absent atoms."""
    device, dtype = frames.trans.device, frames.trans.dtype
    # Products with 0 and 1, not a gather: its backward is not deterministic on a GPU.
    group = one_hot(table("ATOM14_GROUP", device)[aatype], 8, dtype)[..., None]
    trans = torch.sum(group * frames.trans[..., None, :, :], dim=-2)
    rots = torch.sum(group[..., None] * frames.rots[..., None, :, :, :], dim=-3)
    ideal = table("ATOM14_POSITIONS", device, dtype)[aatype]
    mask = table("ATOM14_MASK", device, dtype)[aatype]
    return apply(Rigid(rots, trans), ideal) * mask[..., None]


def atom14_to_atom37(
    atom14: Float[Tensor, "*B R 14 3"],
    residx_atom37_to_atom14: Int[Tensor, "*B R 37"],
    atom37_atom_exists: Float[Tensor, "*B R 37"],
) -> Float[Tensor, "*B R 37 3"]:
    """The same atoms in the atom37 layout; 0 where the residue lacks the atom."""
    slot = residx_atom37_to_atom14[..., None].expand(*residx_atom37_to_atom14.shape, 3)
    return torch.gather(atom14, -2, slot) * atom37_atom_exists.to(atom14.dtype)[..., None]

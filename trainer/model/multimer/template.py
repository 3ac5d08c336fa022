"""Templates of complexes: embedded with the query's pairs, averaged over their slots.

Distances and directions count only within a chain, for the placement of a template's chains to
each other is not known. Source: AlphaFold-Multimer, Evans et al. 2021, SI 7.3 (algorithm 1).
Letters: T templates, R residues.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evofeed.base.shapes import Bool, Float, Int
from evofeed.protein.pseudo_beta import pseudo_beta, pseudo_beta_mask
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.model.config import TemplateConfig
from evofeed.trainer.model.constants import table
from evofeed.trainer.model.embedders import distance_one_hot
from evofeed.trainer.model.primitives import LayerNorm, Linear, one_hot
from evofeed.trainer.model.rigid import Rigid, invert_apply
from evofeed.trainer.model.template import BaseTemplateEmbedder

_N, _CA, _C = (ATOM_ORDER[name] for name in ("N", "CA", "C"))
_LEAST_NORM = 1e-6


class TemplatePairEmbedderMultimer(nn.Module):
    """Pair features of a template and the query's pair representation, to template channels."""

    def __init__(self, c_in: int, c_out: int, c_dgram: int, c_aatype: int) -> None:
        super().__init__()
        self.dgram_linear = Linear(c_dgram, c_out, init="relu")
        self.aatype_linear_1 = Linear(c_aatype, c_out, init="relu")
        self.aatype_linear_2 = Linear(c_aatype, c_out, init="relu")
        self.query_embedding_layer_norm = LayerNorm(c_in)
        self.query_embedding_linear = Linear(c_in, c_out, init="relu")
        self.pseudo_beta_mask_linear = Linear(1, c_out, init="relu")
        self.x_linear = Linear(1, c_out, init="relu")
        self.y_linear = Linear(1, c_out, init="relu")
        self.z_linear = Linear(1, c_out, init="relu")
        self.backbone_mask_linear = Linear(1, c_out, init="relu")

    def forward(
        self,
        template_dgram: Float[Tensor, "*T I R n"],
        aatype_one_hot: Float[Tensor, "*T R 22"],
        query_embedding: Float[Tensor, "*Q I R c_z"],
        pseudo_beta_mask: Float[Tensor, "*T R"],
        backbone_mask: Float[Tensor, "*T R"],
        multichain_mask_2d: Bool[Tensor, "*Q I R"],
        unit_vector: Float[Tensor, "*T I R 3"],
        rows: slice = slice(None),
    ) -> Float[Tensor, "*T I R c_t"]:
        """Embedded pairs of residues i of `rows`; the query's are there for all templates."""
        beta = _pairs(pseudo_beta_mask, rows) * multichain_mask_2d
        backbone = _pairs(backbone_mask, rows) * multichain_mask_2d
        features = [
            template_dgram * beta[..., None],
            beta[..., None],
            unit_vector * backbone[..., None],
            backbone[..., None],
        ]
        # One product for six layers: their outputs are added up anyway.
        layers = (
            self.dgram_linear, self.pseudo_beta_mask_linear, self.x_linear, self.y_linear,
            self.z_linear, self.backbone_mask_linear,
        )  # fmt: skip
        weight = torch.cat([layer.weight for layer in layers], dim=1)
        bias = torch.stack([layer.bias for layer in layers]).sum(0)
        act = F.linear(torch.cat(features, dim=-1), weight, bias)
        query = self.query_embedding_linear(self.query_embedding_layer_norm(query_embedding))
        row = self.aatype_linear_1(aatype_one_hot)[..., None, :, :]
        column = self.aatype_linear_2(aatype_one_hot)[..., rows, None, :]
        return act + (row + column) + query  # type: ignore[no-any-return]


class TemplateSingleEmbedderMultimer(nn.Module):
    """Restypes and chi angles of a template to a row of the MSA."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.template_single_embedder = Linear(c_in, c_out)
        self.template_projector = Linear(c_out, c_out)

    def forward(
        self,
        aatype_one_hot: Float[Tensor, "*B R 22"],
        angles: Float[Tensor, "*B R 4"],
        mask: Float[Tensor, "*B R 4"],
    ) -> Float[Tensor, "*B R c_m"]:
        """Embedded features of what `chi_angles` gives."""
        features = [aatype_one_hot, torch.sin(angles) * mask, torch.cos(angles) * mask, mask]
        hidden = self.template_single_embedder(torch.cat(features, dim=-1))
        return self.template_projector(torch.relu(hidden))  # type: ignore[no-any-return]


class TemplateEmbedderMultimer(BaseTemplateEmbedder):
    """Templates of a complex, by their mean.

    An empty slot is not left out: it goes through the stack and counts in the mean, as in AF2.
    """

    adds_up = True

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__(config)
        self.template_pair_embedder = TemplatePairEmbedderMultimer(
            c_z, config.c_t, config.no_bins, 22
        )
        self.template_single_embedder = TemplateSingleEmbedderMultimer(34, c_m)
        self.template_pair_stack = self._stack(config)
        self.linear_t = Linear(config.c_t, c_z)

    def embed(self, batch: Mapping[str, Tensor], z: Tensor, rows: slice = slice(None)) -> Tensor:
        """Pairs of every template and of the query."""
        aatype = batch["template_aatype"]
        positions = batch["template_all_atom_positions"]
        atom_mask = batch["template_all_atom_mask"]
        frames, backbone_mask = backbone_frames(positions, atom_mask)
        beta = pseudo_beta(aatype, positions)
        dgram = distance_one_hot(beta, *self.distogram, rows)
        asym_id = batch["asym_id"]
        same_chain = asym_id[..., rows, None] == asym_id[..., None, :]
        found: Tensor = self.template_pair_embedder(
            dgram, one_hot(aatype, 22, positions.dtype), z[..., None, :, :, :],
            pseudo_beta_mask(aatype, atom_mask), backbone_mask, same_chain[..., None, :, :],
            unit_vectors(frames, rows), rows,
        )  # fmt: skip
        return found

    def update(self, batch: Mapping[str, Tensor], z: Tensor, t: Tensor) -> Tensor:
        """Of the mean over all slots."""
        mean = torch.sum(t, dim=-4) / batch["template_aatype"].shape[-2]
        return self.linear_t(torch.relu(mean))  # type: ignore[no-any-return]

    def rows(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of restypes and chi angles; known where chi1 is."""
        aatype = batch["template_aatype"]
        positions = batch["template_all_atom_positions"]
        angles, chi_mask = chi_angles(positions, batch["template_all_atom_mask"], aatype)
        restype = one_hot(aatype, 22, positions.dtype)
        return self.template_single_embedder(restype, angles, chi_mask), chi_mask[..., 0]


def backbone_frames(
    positions: Float[Tensor, "*B R 37 3"], mask: Float[Tensor, "*B R 37"]
) -> tuple[Rigid, Float[Tensor, "*B R"]]:
    """Frames at CA with C on the x axis and N in the xy plane, and where all three are known."""
    n, ca, c = (positions[..., atom, :] for atom in (_N, _CA, _C))
    x = _normalised(c - ca)
    n = n - ca
    y = _normalised(n - torch.sum(n * x, dim=-1, keepdim=True) * x)
    rots = torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)
    return Rigid(rots, ca), mask[..., _N] * mask[..., _CA] * mask[..., _C]


def unit_vectors(frames: Rigid, rows: slice = slice(None)) -> Float[Tensor, "*B I R 3"]:
    """Direction to residue j seen from residue i of `rows`; 0 where they are the same."""
    own = Rigid(frames.rots[..., rows, :, :], frames.trans[..., rows, :])
    return _normalised(invert_apply(own.unsqueeze(-1), frames.trans[..., None, :, :]))


def chi_angles(
    positions: Float[Tensor, "*B R 37 3"],
    mask: Float[Tensor, "*B R 37"],
    aatype: Int[Tensor, "*B R"],
) -> tuple[Float[Tensor, "*B R 4"], Float[Tensor, "*B R 4"]]:
    """The four chi angles in radians, and which exist and have all their atoms."""
    restype = aatype.clamp(max=20)
    atoms = table("CHI_ATOM37", positions.device)[restype]  # [*, R, 4, 4]
    flat = atoms.flatten(-2)
    where = flat[..., None].expand(*flat.shape, 3)
    a, b, c, d = torch.unflatten(torch.gather(positions, -2, where), -2, (4, 4)).unbind(-2)
    v1, v2, v3 = a - b, b - c, d - c
    normal_1, normal_2 = torch.linalg.cross(v1, v2), torch.linalg.cross(v3, v2)
    sine = torch.sum(torch.linalg.cross(normal_2, normal_1) * v2, dim=-1)
    cosine = _norm(v2)[..., 0] * torch.sum(normal_1 * normal_2, dim=-1)
    known = torch.unflatten(torch.gather(mask, -1, flat), -1, (4, 4)).prod(dim=-1)
    exists = table("CHI_MASK", positions.device, mask.dtype)[restype]
    return torch.atan2(sine, cosine), exists * known


def _pairs(mask: Tensor, rows: slice) -> Tensor:
    return mask[..., rows, None] * mask[..., None, :]


def _norm(vector: Tensor) -> Tensor:
    square = torch.sum(vector**2, dim=-1, keepdim=True)
    return torch.sqrt(torch.clamp(square, min=_LEAST_NORM**2))


def _normalised(vector: Tensor) -> Tensor:
    return vector / _norm(vector)

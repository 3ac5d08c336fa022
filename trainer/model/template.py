"""Template embedders: add structures of related proteins to the pair and MSA representations.

Source: AF2 SI 1.7.1, algorithms 16 and 17; for complexes AlphaFold-Multimer, Evans et al. 2021, SI
7.3 (algorithm 1). Letters: T templates, R residues.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evofeed.base.shapes import Bool, Float, Int
from evofeed.protein.pseudo_beta import pseudo_beta, pseudo_beta_mask
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.model.compiled import compilable
from evofeed.trainer.model.config import TemplateConfig
from evofeed.trainer.model.constants import table
from evofeed.trainer.model.embedders import distance_one_hot
from evofeed.trainer.model.primitives import (
    Attention,
    LayerNorm,
    Linear,
    OneLinear,
    SharedDropout,
    checkpointed,
    mask_bias,
    one_hot,
)
from evofeed.trainer.model.rigid import Rigid, invert_apply
from evofeed.trainer.model.transition import PairTransition
from evofeed.trainer.model.triangle import (
    TriangleAttentionEndingNode,
    TriangleAttentionStartingNode,
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
)

_N, _CA, _C = (ATOM_ORDER[name] for name in ("N", "CA", "C"))
_LEAST_NORM = 1e-6


class TemplateSingleEmbedder(nn.Module):
    """Embeds torsion angles of a template as a row of the MSA. Source: algorithm 2, line 7."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.linear_1 = Linear(c_in, c_out, init="relu")
        self.linear_2 = Linear(c_out, c_out, init="relu")

    def forward(self, x: Float[Tensor, "*B f"]) -> Float[Tensor, "*B c_m"]:
        """Embedded features."""
        return self.linear_2(torch.relu(self.linear_1(x)))  # type: ignore[no-any-return]


class TemplatePairStackBlock(nn.Module):
    """A block of the template pair stack: attentions first, or last with `tri_mul_first`."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self.tri_mul_first = config.tri_mul_first
        self.dropout_row = SharedDropout(config.dropout_rate, shared_dim=-3)
        self.dropout_col = SharedDropout(config.dropout_rate, shared_dim=-2)
        attention = config.c_t, config.c_hidden_tri_att, config.no_heads
        self.tri_att_start = TriangleAttentionStartingNode(*attention)
        self.tri_att_end = TriangleAttentionEndingNode(*attention)
        multiplication = config.c_t, config.c_hidden_tri_mul, config.fuse_projection_weights
        self.tri_mul_out = TriangleMultiplicationOutgoing(*multiplication)
        self.tri_mul_in = TriangleMultiplicationIncoming(*multiplication)
        self.pair_transition = PairTransition(config.c_t, config.pair_transition_n)

    def forward(
        self,
        t: Float[Tensor, "*B T R R c_t"],
        mask: Float[Tensor, "*B 1 R R"],
        *,
        _mask_trans: bool = True,
    ) -> Float[Tensor, "*B T R R c_t"]:
        """The template representations after this block."""
        mask = mask.expand(t.shape[:-1])
        if self.tri_mul_first:
            t = self._attend(self._multiply(t, mask), mask)
        else:
            t = self._multiply(self._attend(t, mask), mask)
        return t + self.pair_transition(t, mask if _mask_trans else None)  # type: ignore[no-any-return]

    def _attend(self, t: Tensor, mask: Tensor) -> Tensor:
        t = t + self.dropout_row(self.tri_att_start(t, mask))
        return t + self.dropout_col(self.tri_att_end(t, mask))  # type: ignore[no-any-return]

    def _multiply(self, t: Tensor, mask: Tensor) -> Tensor:
        t = t + self.dropout_row(self.tri_mul_out(t, mask))
        return t + self.dropout_row(self.tri_mul_in(t, mask))  # type: ignore[no-any-return]


class TemplatePairStack(nn.Module):
    """The blocks over all templates at once, then a layer norm. Source: algorithm 16."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        blocks = (TemplatePairStackBlock(config) for _ in range(config.no_blocks))
        self.blocks = nn.ModuleList(blocks)
        self.layer_norm = LayerNorm(config.c_t)
        self.checkpointing = False

    def forward(
        self,
        t: Float[Tensor, "*B T R R c_t"],
        mask: Float[Tensor, "*B 1 R R"],
        *,
        _mask_trans: bool = True,
    ) -> Float[Tensor, "*B T R R c_t"]:
        """Template representations; `mask` is the query's pair mask."""
        return self.through(operator.call, t, mask, _mask_trans=_mask_trans)

    def through(
        self, step: Callable[..., Any], t: Tensor, *args: Any, **options: Any
    ) -> Float[Tensor, "*B T R R c_t"]:
        """Templates after `step(block, t, ...)` for each block, and the layer norm."""
        for block in self.blocks:
            t = checkpointed(step, block, t, *args, enabled=self.checkpointing, **options)
        return self.layer_norm(t)  # type: ignore[no-any-return]


class TemplatePointwiseAttention(nn.Module):
    """Every pair attends to the templates at that pair, ungated. Source: algorithm 17."""

    def __init__(self, c_t: int, c_z: int, c_hidden: int, no_heads: int, inf: float = 1e5) -> None:
        super().__init__()
        self.inf = inf
        self.mha = Attention(c_z, c_t, c_t, c_hidden, no_heads, gating=False)

    def forward(
        self,
        t: Float[Tensor, "*B T I R c_t"],
        z: Float[Tensor, "*B I R c_z"],
        template_mask: Float[Tensor, "*B T"] | None = None,
    ) -> Float[Tensor, "*B I R c_z"]:
        """Update of the pair representation; not zero if all templates of a sample are masked."""
        biases = []
        if template_mask is not None:
            biases.append(mask_bias(template_mask, self.inf)[..., None, None, None, None, :])
        kv = t.movedim(-4, -2).contiguous()  # [*, R, R, T, c_t], copied once for both layers
        return self.mha(z[..., None, :], kv, biases).squeeze(-2)  # type: ignore[no-any-return]


class TemplateEmbedder(nn.Module):
    """Pair update and extra MSA rows from the templates of a single chain, by attention.

    Without a valid template the pair update is multiplied by zero, so that every parameter still
    gets a gradient (zero) and torch's DDP never waits for one.
    """

    adds_up = False
    """True if `update` takes the sum over templates of the stack's outputs."""

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__()
        self.bins = config
        self._add_layers(config, c_m, c_z)

    def _add_layers(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        self.template_single_embedder: nn.Module = TemplateSingleEmbedder(57, c_m)
        self.template_pair_embedder: nn.Module = OneLinear(
            config.no_bins + 49, config.c_t, init="relu"
        )
        self.template_pair_stack = TemplatePairStack(config)
        self.template_pointwise_att = TemplatePointwiseAttention(
            config.c_t, c_z, config.c_hidden_pointwise, config.no_heads_pointwise, config.inf
        )

    def forward(
        self,
        batch: Mapping[str, Tensor],
        z: Float[Tensor, "*B R R c_z"],
        pair_mask: Float[Tensor, "*B R R"],
        *,
        _mask_trans: bool = True,
    ) -> tuple[Float[Tensor, "*B R R c_z"], Float[Tensor, "*B T R c_m"], Float[Tensor, "*B T R"]]:
        """Pair update, one MSA row per template, and those rows' mask."""
        t = self.embed(batch, z)
        t = self.template_pair_stack(t, pair_mask[..., None, :, :], _mask_trans=_mask_trans)
        return (self.update(batch, z, t), *self.rows(batch))

    def embed(
        self, batch: Mapping[str, Tensor], z: Float[Tensor, "*B I R c_z"], rows: slice = slice(None)
    ) -> Float[Tensor, "*B T I R c_t"]:
        """Pairs of every template, of residues i of `rows`; z are those rows of the query."""
        feat = build_template_pair_feat(batch, self.bins, rows)
        return self.template_pair_embedder(feat)  # type: ignore[no-any-return]

    def update(
        self,
        batch: Mapping[str, Tensor],
        z: Float[Tensor, "*B I R c_z"],
        t: Float[Tensor, "*B T I R c_t"],
    ) -> Float[Tensor, "*B I R c_z"]:
        """The pair update, from the stack's outputs for all templates (or their sum)."""
        template_mask = batch["template_mask"]
        update: Tensor = self.template_pointwise_att(t, z, template_mask)
        any_template = (torch.sum(template_mask, dim=-1) > 0).to(update.dtype)
        return update * any_template[..., None, None, None]

    def rows(
        self, batch: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "*B T R c_m"], Float[Tensor, "*B T R"]]:
        """Rows of the MSA, and their mask: 1 where psi (for complexes chi1) is known."""
        rows = self.template_single_embedder(build_template_angle_feat(batch))
        return rows, batch["template_torsion_angles_mask"][..., 2]


def build_template_angle_feat(batch: Mapping[str, Tensor]) -> Float[Tensor, "*B T R 57"]:
    """One-hot of 22 restypes, 14 sines and cosines, 14 of the alternative angles, 7 masks."""
    angles = batch["template_torsion_angles_sin_cos"]
    return torch.cat(
        [
            one_hot(batch["template_aatype"], 22, angles.dtype),
            angles.flatten(-2),
            batch["template_alt_torsion_angles_sin_cos"].flatten(-2),
            batch["template_torsion_angles_mask"],
        ],
        dim=-1,
    )


@compilable
def build_template_pair_feat(
    batch: Mapping[str, Tensor], bins: TemplateConfig, rows: slice = slice(None)
) -> Float[Tensor, "*B T I R 88"]:
    """Distogram 39, pseudo-beta mask, restypes of j and of i, three zeros, backbone mask.

    The three zeros are the unit vectors AF2 computes and then multiplies by zero.
    `bins.inf` closes the last distance bin, squared: at 1e5, pairs beyond 316 Å have none.
    `rows` selects the residues i.
    """
    positions = batch["template_pseudo_beta"]
    dgram = distance_one_hot(positions, bins, rows)
    beta_mask = batch["template_pseudo_beta_mask"]
    restype = one_hot(batch["template_aatype"], 22, dgram.dtype)
    square = dgram.shape[:-1]
    atom_mask = batch["template_all_atom_mask"]
    backbone_mask = atom_mask[..., _N] * atom_mask[..., _CA] * atom_mask[..., _C]
    pair_mask = (backbone_mask[..., rows, None] * backbone_mask[..., None, :])[..., None]
    features = [
        dgram,
        (beta_mask[..., rows, None] * beta_mask[..., None, :])[..., None],
        restype[..., None, :, :].expand(*square, 22),
        restype[..., rows, None, :].expand(*square, 22),
        torch.zeros_like(dgram[..., :3]),
        pair_mask,
    ]
    return torch.cat(features, dim=-1) * pair_mask


class TemplatePairEmbedderMultimer(nn.Module):
    """Embeds pair features of templates and the query's pairs in template channels."""

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
        """Embedded pairs of residues i of `rows`; the query's are shared by all templates."""
        beta = _pairs(pseudo_beta_mask, rows) * multichain_mask_2d
        backbone = _pairs(backbone_mask, rows) * multichain_mask_2d
        features = [
            template_dgram * beta[..., None],
            beta[..., None],
            unit_vector * backbone[..., None],
            backbone[..., None],
        ]
        # One product for six layers, whose outputs are added up.
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
    """Embeds restypes and chi angles of a template as a row of the MSA."""

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
        """Embedded outputs of `chi_angles`."""
        features = [aatype_one_hot, torch.sin(angles) * mask, torch.cos(angles) * mask, mask]
        hidden = self.template_single_embedder(torch.cat(features, dim=-1))
        return self.template_projector(torch.relu(hidden))  # type: ignore[no-any-return]


class TemplateEmbedderMultimer(TemplateEmbedder):
    """The template embedder of complexes: the mean over templates.

    They are embedded with the query's pairs. Distances and directions count only within a chain,
    as the relative placement of a template's chains is not known.
    Empty slots are not skipped: they go through the stack and count in the mean, as in AF2.
    """

    adds_up = True

    def _add_layers(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        self.template_pair_embedder = TemplatePairEmbedderMultimer(
            c_z, config.c_t, config.no_bins, 22
        )
        self.template_single_embedder = TemplateSingleEmbedderMultimer(34, c_m)
        self.template_pair_stack = TemplatePairStack(config)
        self.linear_t = Linear(config.c_t, c_z)

    def embed(self, batch: Mapping[str, Tensor], z: Tensor, rows: slice = slice(None)) -> Tensor:
        """Pairs of every template and of the query."""
        aatype = batch["template_aatype"]
        positions = batch["template_all_atom_positions"]
        atom_mask = batch["template_all_atom_mask"]
        frames, backbone_mask = backbone_frames(positions, atom_mask)
        beta = pseudo_beta(aatype, positions)
        dgram = distance_one_hot(beta, self.bins, rows)
        asym_id = batch["asym_id"]
        same_chain = asym_id[..., rows, None] == asym_id[..., None, :]
        embedded: Tensor = self.template_pair_embedder(
            dgram, one_hot(aatype, 22, positions.dtype), z[..., None, :, :, :],
            pseudo_beta_mask(aatype, atom_mask), backbone_mask, same_chain[..., None, :, :],
            unit_vectors(frames, rows), rows,
        )  # fmt: skip
        return embedded

    def update(self, batch: Mapping[str, Tensor], z: Tensor, t: Tensor) -> Tensor:
        """The pair update from the mean over all slots."""
        mean = torch.sum(t, dim=-4) / batch["template_aatype"].shape[-2]
        return self.linear_t(torch.relu(mean))  # type: ignore[no-any-return]

    def rows(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Rows from restypes and chi angles; their mask is 1 where chi1 is known."""
        aatype = batch["template_aatype"]
        positions = batch["template_all_atom_positions"]
        angles, chi_mask = chi_angles(positions, batch["template_all_atom_mask"], aatype)
        restype = one_hot(aatype, 22, positions.dtype)
        return self.template_single_embedder(restype, angles, chi_mask), chi_mask[..., 0]


def backbone_frames(
    positions: Float[Tensor, "*B R 37 3"], mask: Float[Tensor, "*B R 37"]
) -> tuple[Rigid, Float[Tensor, "*B R"]]:
    """Frames at CA with C on the x axis and N in the xy plane; mask of residues with all three."""
    n, ca, c = (positions[..., atom, :] for atom in (_N, _CA, _C))
    x = _normalised(c - ca)
    n = n - ca
    y = _normalised(n - torch.sum(n * x, dim=-1, keepdim=True) * x)
    rots = torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)
    return Rigid(rots, ca), mask[..., _N] * mask[..., _CA] * mask[..., _C]


def unit_vectors(frames: Rigid, rows: slice = slice(None)) -> Float[Tensor, "*B I R 3"]:
    """Unit vectors to residue j in the frame of residue i of `rows`; 0 where i = j."""
    row_frames = Rigid(frames.rots[..., rows, :, :], frames.trans[..., rows, :])
    return _normalised(invert_apply(row_frames.unsqueeze(-1), frames.trans[..., None, :, :]))


def chi_angles(
    positions: Float[Tensor, "*B R 37 3"],
    mask: Float[Tensor, "*B R 37"],
    aatype: Int[Tensor, "*B R"],
) -> tuple[Float[Tensor, "*B R 4"], Float[Tensor, "*B R 4"]]:
    """The four chi angles in radians, and the mask of those that exist and have all atoms."""
    restype = aatype.clamp(max=20)
    atoms = table("CHI_ATOM37", positions.device)[restype]  # [*, R, 4, 4]
    flat = atoms.flatten(-2)
    index = flat[..., None].expand(*flat.shape, 3)
    a, b, c, d = torch.unflatten(torch.gather(positions, -2, index), -2, (4, 4)).unbind(-2)
    v1, v2, v3 = a - b, b - c, d - c
    normal_1, normal_2 = torch.linalg.cross(v1, v2), torch.linalg.cross(v3, v2)
    sine = torch.sum(torch.linalg.cross(normal_2, normal_1) * v2, dim=-1)
    cosine = _norm(v2)[..., 0] * torch.sum(normal_1 * normal_2, dim=-1)
    resolved = torch.unflatten(torch.gather(mask, -1, flat), -1, (4, 4)).prod(dim=-1)
    exists = table("CHI_MASK", positions.device, mask.dtype)[restype]
    return torch.atan2(sine, cosine), exists * resolved


def _pairs(mask: Tensor, rows: slice) -> Tensor:
    return mask[..., rows, None] * mask[..., None, :]


def _norm(vector: Tensor) -> Tensor:
    square = torch.sum(vector**2, dim=-1, keepdim=True)
    return torch.sqrt(torch.clamp(square, min=_LEAST_NORM**2))


def _normalised(vector: Tensor) -> Tensor:
    return vector / _norm(vector)

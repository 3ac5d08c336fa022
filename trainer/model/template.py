"""Templates: structures of related proteins, folded into the pair and MSA representations.

Source: AF2 SI 1.7.1, algorithms 16 and 17. Letters: T templates, R residues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.model.config import TemplateConfig
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
from evofeed.trainer.model.transition import PairTransition
from evofeed.trainer.model.triangle import (
    TriangleAttentionEndingNode,
    TriangleAttentionStartingNode,
    triangle_multiplications,
)

_N, _CA, _C = (ATOM_ORDER[name] for name in ("N", "CA", "C"))


class TemplateSingleEmbedder(nn.Module):
    """Torsion angles of a template to a row of the MSA. Source: algorithm 2, line 7."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.linear_1 = Linear(c_in, c_out, init="relu")
        self.linear_2 = Linear(c_out, c_out, init="relu")

    def forward(self, x: Float[Tensor, "*B f"]) -> Float[Tensor, "*B c_m"]:
        """Embedded features."""
        return self.linear_2(torch.relu(self.linear_1(x)))  # type: ignore[no-any-return]


class TemplatePairStackBlock(nn.Module):
    """A pair stack of its own order: attentions first, multiplications after."""

    def __init__(
        self,
        c_t: int,
        c_hidden_tri_att: int,
        c_hidden_tri_mul: int,
        no_heads: int,
        pair_transition_n: int,
        dropout_rate: float,
        tri_mul_first: bool = False,
        fuse_projection_weights: bool = False,
        inf: float = 1e9,
    ) -> None:
        super().__init__()
        self.tri_mul_first = tri_mul_first
        self.dropout_row = SharedDropout(dropout_rate, shared_dim=-3)
        self.dropout_col = SharedDropout(dropout_rate, shared_dim=-2)
        self.tri_att_start = TriangleAttentionStartingNode(c_t, c_hidden_tri_att, no_heads, inf)
        self.tri_att_end = TriangleAttentionEndingNode(c_t, c_hidden_tri_att, no_heads, inf)
        self.tri_mul_out, self.tri_mul_in = triangle_multiplications(
            c_t, c_hidden_tri_mul, fuse_projection_weights
        )
        self.pair_transition = PairTransition(c_t, pair_transition_n)

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

    def __init__(self, *, c_t: int, no_blocks: int, **block: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TemplatePairStackBlock(c_t, **block) for _ in range(no_blocks))
        self.layer_norm = LayerNorm(c_t)
        self.checkpointing = False

    def forward(
        self,
        t: Float[Tensor, "*B T R R c_t"],
        mask: Float[Tensor, "*B 1 R R"],
        *,
        _mask_trans: bool = True,
    ) -> Float[Tensor, "*B T R R c_t"]:
        """Template representations; `mask` is the query's pair mask."""
        for block in self.blocks:
            t = checkpointed(block, t, mask, _mask_trans=_mask_trans, enabled=self.checkpointing)
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
        """Update of the pair representation (not yet zero where every template is masked)."""
        biases = []
        if template_mask is not None:
            biases.append(mask_bias(template_mask, self.inf)[..., None, None, None, None, :])
        kv = t.movedim(-4, -2).contiguous()  # [*, R, R, T, c_t], copied once for both layers
        return self.mha(z[..., None, :], kv, biases).squeeze(-2)  # type: ignore[no-any-return]


class BaseTemplateEmbedder(nn.Module):
    """All that templates add: a pair update, extra rows of the MSA and their mask.

    Of single chains and of complexes; they differ in `embed`, `update` and `rows`.
    """

    adds_up = False
    """Whether the update is made of the sum of what the stack gives for each template."""

    template_pair_stack: TemplatePairStack

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self.distogram = (config.min_bin, config.max_bin, config.no_bins, config.inf)
        """First and last lower edge of the distance bins, their number, the last upper edge
        squared."""

    @staticmethod
    def _stack(config: TemplateConfig) -> TemplatePairStack:
        return TemplatePairStack(
            c_t=config.c_t, c_hidden_tri_att=config.c_hidden_tri_att,
            c_hidden_tri_mul=config.c_hidden_tri_mul, no_blocks=config.no_blocks,
            no_heads=config.no_heads, pair_transition_n=config.pair_transition_n,
            dropout_rate=config.dropout_rate, tri_mul_first=config.tri_mul_first,
            fuse_projection_weights=config.fuse_projection_weights,
        )  # fmt: skip

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
        """Pairs of every template, of residues i of `rows`; z are those rows of the query's."""
        raise NotImplementedError

    def update(
        self,
        batch: Mapping[str, Tensor],
        z: Float[Tensor, "*B I R c_z"],
        t: Float[Tensor, "*B T I R c_t"],
    ) -> Float[Tensor, "*B I R c_z"]:
        """What templates add to pairs, from what the stack made of them, or from its sum."""
        raise NotImplementedError

    def rows(
        self, batch: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "*B T R c_m"], Float[Tensor, "*B T R"]]:
        """Rows of the MSA, and where the angle they go by is known."""
        raise NotImplementedError


class TemplateEmbedder(BaseTemplateEmbedder):
    """Templates of a single chain, by attention.

    With no valid template the pair update is multiplied by zero, so every
    parameter still gets a gradient (zero) and torch's DDP never waits for one.
    """

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__(config)
        self.template_single_embedder = TemplateSingleEmbedder(57, c_m)
        self.template_pair_embedder = OneLinear(config.no_bins + 49, config.c_t, init="relu")
        self.template_pair_stack = self._stack(config)
        self.template_pointwise_att = TemplatePointwiseAttention(
            config.c_t, c_z, config.c_hidden_pointwise, config.no_heads_pointwise, config.inf
        )

    def embed(self, batch: Mapping[str, Tensor], z: Tensor, rows: slice = slice(None)) -> Tensor:
        """Pairs of every template; the query's are not read."""
        feat = build_template_pair_feat(batch, *self.distogram, rows)
        return self.template_pair_embedder(feat)  # type: ignore[no-any-return]

    def update(self, batch: Mapping[str, Tensor], z: Tensor, t: Tensor) -> Tensor:
        """Of every pair's attention to its templates; zero where a sample has none."""
        template_mask = batch["template_mask"]
        update: Tensor = self.template_pointwise_att(t, z, template_mask)
        any_template = (torch.sum(template_mask, dim=-1) > 0).to(update.dtype)
        return update * any_template[..., None, None, None]

    def rows(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of all torsion angles; known where psi is."""
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


def build_template_pair_feat(
    batch: Mapping[str, Tensor],
    min_bin: float,
    max_bin: float,
    no_bins: int,
    inf: float,
    rows: slice = slice(None),
) -> Float[Tensor, "*B T I R 88"]:
    """Distogram 39, pseudo-beta mask, restypes of j and of i, three zeros, backbone mask.

    The three zeros are the unit vectors AF2 computes and then multiplies by zero.
    `inf` closes the last distance bin, squared: at 1e5, pairs beyond 316 Å have none.
    `rows` are the residues i that are wanted.
    """
    positions = batch["template_pseudo_beta"]
    dgram = distance_one_hot(positions, min_bin, max_bin, no_bins, inf, rows)
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

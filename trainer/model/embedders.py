"""Embedders of input features and of recycled representations.

Source: AF2 SI 1.3 (algorithms 3 to 5) and 1.10 (algorithm 32). Letters: S sequences, R residues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.config import RecyclingConfig, TemplateConfig
from evofeed.trainer.model.primitives import LayerNorm, Linear, full_precision, one_hot


class InputEmbedder(nn.Module):
    """The MSA and pair representation of the input features. Source: algorithms 3 and 4."""

    def __init__(self, tf_dim: int, msa_dim: int, c_z: int, c_m: int, relpos_k: int) -> None:
        super().__init__()
        self.relpos_k = relpos_k
        self.linear_tf_z_i = Linear(tf_dim, c_z)
        self.linear_tf_z_j = Linear(tf_dim, c_z)
        self.linear_tf_m = Linear(tf_dim, c_m)
        self.linear_msa_m = Linear(msa_dim, c_m)
        self.linear_relpos = Linear(2 * relpos_k + 1, c_z)

    def forward(
        self, batch: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "*B S R c_m"], Float[Tensor, "*B R R c_z"]]:
        """MSA and pair representation, unmasked, from `target_feat`, `msa_feat`,
        `residue_index` and, for complexes, the chain ids."""
        target_feat = batch["target_feat"]
        pairs = self.pairs(target_feat, self.relpos_of(batch))
        return self.msa(target_feat, batch["msa_feat"]), pairs

    def msa(self, target_feat: Tensor, msa_feat: Tensor) -> Float[Tensor, "*B S R c_m"]:
        """The MSA representation."""
        return self.linear_msa_m(msa_feat) + self.linear_tf_m(target_feat)[..., None, :, :]  # type: ignore[no-any-return]

    def pairs(
        self, target_feat: Tensor, relpos: Tensor, rows: slice = slice(None)
    ) -> Float[Tensor, "*B I R c_z"]:
        """Rows of the pair representation, given their embedded relative positions."""
        row = self.linear_tf_z_i(target_feat[..., rows, :])[..., :, None, :]
        return relpos + row + self.linear_tf_z_j(target_feat)[..., None, :, :]  # type: ignore[no-any-return]

    def relpos_of(
        self, batch: Mapping[str, Tensor], rows: slice = slice(None)
    ) -> Float[Tensor, "*B I R c_z"]:
        """Embedded relative positions i - j of residues i of `rows`, clipped to +-relpos_k."""
        index = batch["residue_index"]
        offset = index[..., rows, None] - index[..., None, :]
        bins = offset.clamp(-self.relpos_k, self.relpos_k) + self.relpos_k
        dtype = batch["target_feat"].dtype
        return self.linear_relpos(one_hot(bins, 2 * self.relpos_k + 1, dtype))  # type: ignore[no-any-return]


class InputEmbedderMultimer(InputEmbedder):
    """The input embedder of complexes. Source: AlphaFold-Multimer, Evans et al. 2021, SI 7.1.

    A pair's relative position is one-hot over 2k+1 offsets and "other chain", then 1 if both
    residues are of one entity, then the difference of their copies' numbers and "other entity".
    """

    def __init__(
        self,
        tf_dim: int,
        msa_dim: int,
        c_z: int,
        c_m: int,
        max_relative_idx: int,
        use_chain_relative: bool,
        max_relative_chain: int,
    ) -> None:
        super().__init__(tf_dim, msa_dim, c_z, c_m, max_relative_idx)
        self.use_chain_relative = use_chain_relative
        self.max_relative_chain = max_relative_chain
        if use_chain_relative:
            bins = (2 * max_relative_idx + 2) + 1 + (2 * max_relative_chain + 2)
            self.linear_relpos = Linear(bins, c_z)

    def relpos_of(
        self, batch: Mapping[str, Tensor], rows: slice = slice(None)
    ) -> Float[Tensor, "*B I R c_z"]:
        """Embedded relative positions of residues and chains."""
        if not self.use_chain_relative:
            return super().relpos_of(batch, rows)
        dtype = batch["target_feat"].dtype
        same_chain, same_entity = (
            batch[name][..., rows, None] == batch[name][..., None, :]
            for name in ("asym_id", "entity_id")
        )
        position = _clipped(batch["residue_index"], self.relpos_k, same_chain, rows)
        copy = _clipped(batch["sym_id"], self.max_relative_chain, same_entity, rows)
        features = [
            one_hot(position, 2 * self.relpos_k + 2, dtype),
            same_entity[..., None].to(dtype),
            one_hot(copy, 2 * self.max_relative_chain + 2, dtype),
        ]
        return self.linear_relpos(torch.cat(features, dim=-1))  # type: ignore[no-any-return]


class RecyclingEmbedder(nn.Module):
    """Embeds the previous cycle's first MSA row, pairs and structure. Source: algorithm 32.

    It runs in the first cycle too, on zeros, so that its biases always apply.
    """

    def __init__(self, config: RecyclingConfig, c_m: int, c_z: int) -> None:
        super().__init__()
        self.bins = config
        self.linear = Linear(config.no_bins, c_z)
        self.layer_norm_m = LayerNorm(c_m)
        self.layer_norm_z = LayerNorm(c_z)

    def forward(
        self,
        m: Float[Tensor, "*B R c_m"],
        z: Float[Tensor, "*B I R c_z"],
        x: Float[Tensor, "*B R 3"],
        rows: slice = slice(None),
    ) -> tuple[Float[Tensor, "*B R c_m"], Float[Tensor, "*B I R c_z"]]:
        """Updates of the first MSA row and of `rows` of the pair representation.

        The inputs are from the previous cycle; z has only those rows, x are pseudo-beta positions
        in ångström.
        """
        bins = distance_one_hot(x, self.bins, rows)
        return self.layer_norm_m(m), self.linear(bins) + self.layer_norm_z(z)


def build_extra_msa_feat(
    extra_msa: Int[Tensor, "*B S R"],
    extra_has_deletion: Float[Tensor, "*B S R"],
    extra_deletion_value: Float[Tensor, "*B S R"],
) -> Float[Tensor, "*B S R 25"]:
    """One-hot of 23 restypes, has-deletion, deletion value."""
    dtype = extra_deletion_value.dtype
    deletions = [extra_has_deletion[..., None], extra_deletion_value[..., None]]
    return torch.cat([one_hot(extra_msa, 23, dtype), *deletions], dim=-1)


def deletion_features(
    deletions: Float[Tensor, "*B S R"],
) -> tuple[Float[Tensor, "*B S R"], Float[Tensor, "*B S R"]]:
    """Has-deletion and deletion value from counts of deletions. Source: AF2 SI table 1."""
    return deletions.clamp(0, 1), torch.atan(deletions / 3) * (2 / math.pi)


def distance_one_hot(
    x: Float[Tensor, "*B R 3"],
    bins: RecyclingConfig | TemplateConfig,
    rows: slice = slice(None),
) -> Float[Tensor, "*B I R n"]:
    """One-hot distance bins of pairs of points (ångström); all zero below the first edge.

    `rows` selects the first points of the pairs.
    """
    with full_precision(x):
        square = torch.sum((x[..., rows, None, :] - x[..., None, :, :]) ** 2, dim=-1, keepdim=True)
        edges = bins.min_bin, bins.max_bin, bins.no_bins
        lower = torch.linspace(*edges, device=x.device, dtype=x.dtype) ** 2
        upper = torch.cat([lower[1:], torch.full_like(lower[:1], bins.inf)])
        return ((square > lower) & (square < upper)).to(x.dtype)


def _clipped(numbers: Tensor, limit: int, same: Tensor, rows: slice) -> Tensor:
    """i - j clipped to +-limit, counted from 0; 2 limit + 1 where not `same`."""
    offset = numbers[..., rows, None] - numbers[..., None, :]
    return torch.where(same, offset.clamp(-limit, limit) + limit, 2 * limit + 1)

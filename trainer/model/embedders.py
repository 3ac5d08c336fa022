"""From features to the first MSA and pair representation, and the recycled ones.

Source: AF2 SI 1.3 (algorithms 3 to 5) and 1.10 (algorithm 32). Letters: S sequences, R residues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.primitives import LayerNorm, Linear, full_precision, one_hot


class InputEmbedder(nn.Module):
    """MSA and pair representation of the input features. Source: algorithms 3 and 4."""

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
        """MSA and pair representation, nothing masked, of `target_feat`, `msa_feat`,
        `residue_index` and, of complexes, the chain ids."""
        target_feat = batch["target_feat"]
        pairs = self.pairs(target_feat, self.relpos_of(batch))
        return self.msa(target_feat, batch["msa_feat"]), pairs

    def msa(self, target_feat: Tensor, msa_feat: Tensor) -> Float[Tensor, "*B S R c_m"]:
        """The MSA representation."""
        return self.linear_msa_m(msa_feat) + self.linear_tf_m(target_feat)[..., None, :, :]  # type: ignore[no-any-return]

    def pairs(
        self, target_feat: Tensor, relpos: Tensor, rows: slice = slice(None)
    ) -> Float[Tensor, "*B I R c_z"]:
        """Those rows of the pair representation whose relative positions are given."""
        row = self.linear_tf_z_i(target_feat[..., rows, :])[..., :, None, :]
        return relpos + row + self.linear_tf_z_j(target_feat)[..., None, :, :]  # type: ignore[no-any-return]

    def relpos_of(
        self, batch: Mapping[str, Tensor], rows: slice = slice(None)
    ) -> Float[Tensor, "*B I R c_z"]:
        """Relative positions i - j of residues i of `rows`, clipped to +-relpos_k, embedded."""
        index = batch["residue_index"]
        offset = index[..., rows, None] - index[..., None, :]
        bins = offset.clamp(-self.relpos_k, self.relpos_k) + self.relpos_k
        dtype = batch["target_feat"].dtype
        return self.linear_relpos(one_hot(bins, 2 * self.relpos_k + 1, dtype))  # type: ignore[no-any-return]


class RecyclingEmbedder(nn.Module):
    """What the previous cycle adds to the first MSA row and to the pairs. Source: algorithm 32.

    It runs in the first cycle too, on zeros, so that its biases always act.
    """

    def __init__(
        self, c_m: int, c_z: int, min_bin: float, max_bin: float, no_bins: int, inf: float = 1e8
    ) -> None:
        super().__init__()
        self.min_bin = min_bin
        self.max_bin = max_bin
        self.no_bins = no_bins
        self.inf = inf
        self.linear = Linear(no_bins, c_z)
        self.layer_norm_m = LayerNorm(c_m)
        self.layer_norm_z = LayerNorm(c_z)

    def forward(
        self,
        m: Float[Tensor, "*B R c_m"],
        z: Float[Tensor, "*B I R c_z"],
        x: Float[Tensor, "*B R 3"],
        rows: slice = slice(None),
    ) -> tuple[Float[Tensor, "*B R c_m"], Float[Tensor, "*B I R c_z"]]:
        """Updates of the first MSA row and of the pair representation.

        Args:
            m: first MSA row of the cycle before.
            z: pair representation of the cycle before, those rows that are wanted.
            x: pseudo-beta positions of the cycle before, ångström.
            rows: residues i that are wanted.
        """
        bins = distance_one_hot(x, self.min_bin, self.max_bin, self.no_bins, self.inf, rows)
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
    """Has-deletion and deletion value of counts of deletions. Source: AF2 SI table 1."""
    return deletions.clamp(0, 1), torch.atan(deletions / 3) * (2 / math.pi)


def distance_one_hot(
    x: Float[Tensor, "*B R 3"],
    min_bin: float,
    max_bin: float,
    no_bins: int,
    inf: float,
    rows: slice = slice(None),
) -> Float[Tensor, "*B I R n"]:
    """Which distance bin each pair of points falls into; all zero below the first edge.

    Args:
        x: points, ångström.
        min_bin: first lower edge, ångström.
        max_bin: last lower edge, ångström.
        inf: upper edge of the last bin, squared.
        rows: which points come first in a pair.
    """
    with full_precision(x):
        square = torch.sum((x[..., rows, None, :] - x[..., None, :, :]) ** 2, dim=-1, keepdim=True)
        lower = torch.linspace(min_bin, max_bin, no_bins, device=x.device, dtype=x.dtype) ** 2
        upper = torch.cat([lower[1:], torch.full_like(lower[:1], inf)])
        return ((square > lower) & (square < upper)).to(x.dtype)

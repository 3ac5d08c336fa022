"""The input embedder of complexes: positions relative within a chain, entities and copies.

Source: AlphaFold-Multimer, Evans et al. 2021, SI 7.1. Letters: S sequences, R residues.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from evofeed.base.shapes import Float
from evofeed.trainer.model.embedders import InputEmbedder
from evofeed.trainer.model.primitives import Linear, one_hot


class InputEmbedderMultimer(InputEmbedder):
    """MSA and pair representation of the input features.

    A pair's relative position is one-hot over 2k+1 offsets and "other chain", then whether both
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
        """Relative positions of residues and chains, embedded."""
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


def _clipped(numbers: Tensor, most: int, same: Tensor, rows: slice) -> Tensor:
    """i - j clipped to +-most, counted from 0; 2 most + 1 where not `same`."""
    offset = numbers[..., rows, None] - numbers[..., None, :]
    return torch.where(same, offset.clamp(-most, most) + most, 2 * most + 1)

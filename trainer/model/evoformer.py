"""The Evoformer: blocks that let the MSA and the pair representation inform each other.

Source: AF2 SI 1.6, algorithm 6. Letters: S sequences, R residues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.msa_attention import MSAColumnAttention, MSARowAttentionWithPairBias
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.primitives import Linear, SharedDropout, checkpointed
from evofeed.trainer.model.transition import MSATransition, PairTransition
from evofeed.trainer.model.triangle import (
    TriangleAttentionStartingNode,
    triangle_multiplications,
)


class PairStack(nn.Module):
    """The pair half of a block: both triangle multiplications, both attentions, a transition."""

    def __init__(
        self,
        c_z: int,
        c_hidden_mul: int,
        c_hidden_pair_att: int,
        no_heads_pair: int,
        transition_n: int,
        pair_dropout: float,
        fuse_projection_weights: bool = False,
        inf: float = 1e9,
    ) -> None:
        super().__init__()
        self.tri_mul_out, self.tri_mul_in = triangle_multiplications(
            c_z, c_hidden_mul, fuse_projection_weights
        )
        attention = (c_z, c_hidden_pair_att, no_heads_pair, inf)
        self.tri_att_start = TriangleAttentionStartingNode(*attention)
        # The ending node is a starting node on the transposed tensor, which makes
        # its rowwise dropout columnwise.
        self.tri_att_end = TriangleAttentionStartingNode(*attention)
        self.pair_transition = PairTransition(c_z, transition_n)
        self.ps_dropout_row_layer = SharedDropout(pair_dropout, shared_dim=-3)

    def forward(
        self,
        z: Float[Tensor, "*B R R c_z"],
        pair_mask: Float[Tensor, "*B R R"],
        *,
        _mask_trans: bool = True,
    ) -> Float[Tensor, "*B R R c_z"]:
        """The pair representation after this block; `_mask_trans` also masks the transition."""
        drop = self.ps_dropout_row_layer
        z = z + drop(self.tri_mul_out(z, pair_mask))
        z = z + drop(self.tri_mul_in(z, pair_mask))
        z = z + drop(self.tri_att_start(z, pair_mask))
        z = z.transpose(-2, -3)
        z = z + drop(self.tri_att_end(z, pair_mask.transpose(-1, -2)))
        z = z.transpose(-2, -3)
        return z + self.pair_transition(z, pair_mask if _mask_trans else None)  # type: ignore[no-any-return]


class MSABlock(nn.Module):
    """What Evoformer and extra-MSA blocks share; they differ in their column attention.

    Args:
        column_attention: the column attention module, or None to leave it out.
        msa_dropout: rate of the rowwise dropout after the row attention.
        pair_dropout: rate of the dropouts in the pair stack.
        opm_first: do the outer product mean before the MSA updates.
        (the others: channels and heads as in OpenFold's configuration)
    """

    def __init__(
        self,
        *,
        c_m: int,
        c_z: int,
        c_hidden_msa_att: int,
        c_hidden_opm: int,
        c_hidden_mul: int,
        c_hidden_pair_att: int,
        no_heads_msa: int,
        no_heads_pair: int,
        transition_n: int,
        msa_dropout: float,
        pair_dropout: float,
        opm_first: bool = False,
        fuse_projection_weights: bool = False,
        inf: float = 1e9,
        column_attention: nn.Module | None,
    ) -> None:
        super().__init__()
        self.opm_first = opm_first
        self.msa_att_row = MSARowAttentionWithPairBias(
            c_m, c_z, c_hidden_msa_att, no_heads_msa, inf
        )
        self.msa_att_col = column_attention
        self.msa_dropout_layer = SharedDropout(msa_dropout, shared_dim=-3)
        self.msa_transition = MSATransition(c_m, transition_n)
        self.outer_product_mean = OuterProductMean(c_m, c_z, c_hidden_opm)
        self.pair_stack = PairStack(
            c_z,
            c_hidden_mul,
            c_hidden_pair_att,
            no_heads_pair,
            transition_n,
            pair_dropout,
            fuse_projection_weights,
            inf,
        )

    def forward(
        self,
        m: Float[Tensor, "*B S R c_m"],
        z: Float[Tensor, "*B R R c_z"],
        msa_mask: Float[Tensor, "*B S R"],
        pair_mask: Float[Tensor, "*B R R"],
        *,
        _mask_trans: bool = True,
    ) -> tuple[Float[Tensor, "*B S R c_m"], Float[Tensor, "*B R R c_z"]]:
        """MSA and pair representation after this block.

        `_mask_trans` also masks the transitions, which AF2's training does not.
        """
        if self.opm_first:
            z = z + self.outer_product_mean(m, msa_mask)
        m = m + self.msa_dropout_layer(self.msa_att_row(m, z, msa_mask))
        if self.msa_att_col is not None:
            m = m + self.msa_att_col(m, msa_mask)
        m = m + self.msa_transition(m, msa_mask if self._masks_msa(_mask_trans) else None)
        if not self.opm_first:
            z = z + self.outer_product_mean(m, msa_mask)
        return m, self.pair_stack(z, pair_mask, _mask_trans=_mask_trans)

    def _masks_msa(self, mask_trans: bool) -> bool:
        return mask_trans


class EvoformerBlock(MSABlock):
    """One of the 48 blocks of the trunk. Source: AF2 SI algorithm 6, lines 2 to 10."""

    def __init__(
        self, *, c_m: int, c_hidden_msa_att: int, no_heads_msa: int, inf: float = 1e9,
        no_column_attention: bool = False, **block: Any,
    ) -> None:  # fmt: skip
        column = MSAColumnAttention(c_m, c_hidden_msa_att, no_heads_msa, inf)
        super().__init__(
            column_attention=None if no_column_attention else column, c_m=c_m,
            c_hidden_msa_att=c_hidden_msa_att, no_heads_msa=no_heads_msa, inf=inf, **block,
        )  # fmt: skip


class MSAStack(nn.Module):
    """Blocks one after the other; the two stacks differ in their blocks and in what they return.

    Attributes:
        checkpointing: whether activations are recomputed in the backward pass.
        watch: called after every block, if anybody watches.
    """

    watch: Callable[[], None] | None = None

    def __init__(self, blocks: Iterable[MSABlock]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.checkpointing = False

    def forward(
        self,
        m: Float[Tensor, "*B S R c_m"],
        z: Float[Tensor, "*B R R c_z"],
        msa_mask: Float[Tensor, "*B S R"],
        pair_mask: Float[Tensor, "*B R R"],
        *,
        _mask_trans: bool = True,
    ) -> Any:
        """What the stack gives (see its class) from MSA and pair representation."""
        for block in self.blocks:
            m, z = checkpointed(
                block,
                m,
                z,
                msa_mask,
                pair_mask,
                _mask_trans=_mask_trans,
                enabled=self.checkpointing,
            )
            if self.watch is not None:
                self.watch()
        return self._result(m, z)

    def _result(self, m: Tensor, z: Tensor) -> Any:
        raise NotImplementedError


class EvoformerStack(MSAStack):
    """All Evoformer blocks; gives MSA, pair and single representation, the last `[*, R, c_s]`."""

    def __init__(self, *, c_m: int, c_s: int, no_blocks: int, **block: Any) -> None:
        super().__init__(EvoformerBlock(c_m=c_m, **block) for _ in range(no_blocks))
        self.linear = Linear(c_m, c_s)

    def _result(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return m, z, self.linear(m[..., 0, :, :])

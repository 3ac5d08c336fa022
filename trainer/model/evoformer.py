"""The Evoformer and the extra-MSA stack: blocks that update the MSA and pair representations.

The extra-MSA stack, with thousands of sequences of few channels, returns only the pairs.
Source: AF2 SI 1.6 and 1.7.2, algorithms 6 and 18. Letters: S sequences, R residues.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.config import EvoformerConfig, ExtraMSAConfig, StackConfig
from evofeed.trainer.model.msa_attention import (
    MSAColumnAttention,
    MSAColumnGlobalAttention,
    MSARowAttentionWithPairBias,
)
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.primitives import Linear, SharedDropout, checkpointed
from evofeed.trainer.model.transition import MSATransition, PairTransition
from evofeed.trainer.model.triangle import (
    TriangleAttentionStartingNode,
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
)


class PairStack(nn.Module):
    """The pair half of a block: both triangle multiplications, both attentions, a transition."""

    def __init__(self, config: StackConfig, c_z: int) -> None:
        super().__init__()
        multiplication = c_z, config.c_hidden_mul, config.fuse_projection_weights
        self.tri_mul_out = TriangleMultiplicationOutgoing(*multiplication)
        self.tri_mul_in = TriangleMultiplicationIncoming(*multiplication)
        attention = (c_z, config.c_hidden_pair_att, config.no_heads_pair, config.inf)
        self.tri_att_start = TriangleAttentionStartingNode(*attention)
        # The ending node is a starting node on the transposed tensor, which makes
        # its rowwise dropout columnwise.
        self.tri_att_end = TriangleAttentionStartingNode(*attention)
        self.pair_transition = PairTransition(c_z, config.transition_n)
        self.ps_dropout_row_layer = SharedDropout(config.pair_dropout, shared_dim=-3)

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
    """Base of Evoformer and extra-MSA blocks, which differ in their column attention."""

    def __init__(
        self, config: StackConfig, c_m: int, c_z: int, column_attention: nn.Module | None
    ) -> None:
        super().__init__()
        self.opm_first = config.opm_first
        self.msa_att_row = MSARowAttentionWithPairBias(
            c_m, c_z, config.c_hidden_msa_att, config.no_heads_msa, config.inf
        )
        self.msa_att_col = column_attention
        self.msa_dropout_layer = SharedDropout(config.msa_dropout, shared_dim=-3)
        self.msa_transition = MSATransition(c_m, config.transition_n)
        self.outer_product_mean = OuterProductMean(c_m, c_z, config.c_hidden_opm)
        self.pair_stack = PairStack(config, c_z)

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

    def __init__(self, config: EvoformerConfig, c_m: int, c_z: int) -> None:
        column = MSAColumnAttention(c_m, config.c_hidden_msa_att, config.no_heads_msa, config.inf)
        super().__init__(config, c_m, c_z, None if config.no_column_attention else column)


class ExtraMSABlock(MSABlock):
    """Has global column attention and always masks the MSA transition. Source: algorithm 18."""

    def __init__(self, config: ExtraMSAConfig, c_m: int, c_z: int) -> None:
        sizes = c_m, config.c_hidden_msa_att, config.no_heads_msa, config.inf, config.eps
        super().__init__(config, c_m, c_z, MSAColumnGlobalAttention(*sizes))

    def _masks_msa(self, mask_trans: bool) -> bool:
        return True


class MSAStack(nn.Module):
    """A sequence of blocks; the two stacks differ in their blocks and outputs.

    With `checkpointing` activations are recomputed in the backward pass.
    """

    on_block: Callable[[], None] | None = None
    """Called after every block, to report progress."""

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
        """Outputs of the stack (see its class) for an MSA and pair representation."""
        m, z = self.through(operator.call, m, z, msa_mask, pair_mask, _mask_trans=_mask_trans)
        return self._result(m, z)

    def through(
        self, step: Callable[..., Any], m: Tensor, z: Tensor, *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """MSA and pairs after `step(block, m, z, ...)` for each block."""
        for block in self.blocks:
            m, z = checkpointed(step, block, m, z, *args, enabled=self.checkpointing, **options)
            if self.on_block is not None:
                self.on_block()
        return m, z

    def _result(self, m: Tensor, z: Tensor) -> Any:
        raise NotImplementedError


class EvoformerStack(MSAStack):
    """All Evoformer blocks; returns MSA, pair and single representation, the last `[*, R, c_s]`."""

    def __init__(self, config: EvoformerConfig, c_m: int, c_z: int, c_s: int) -> None:
        super().__init__(EvoformerBlock(config, c_m, c_z) for _ in range(config.no_blocks))
        self.linear = Linear(c_m, c_s)

    def _result(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return m, z, self.linear(m[..., 0, :, :])


class ExtraMSAStack(MSAStack):
    """All extra-MSA blocks; returns only the pair representation."""

    def __init__(self, config: ExtraMSAConfig, c_m: int, c_z: int) -> None:
        super().__init__(ExtraMSABlock(config, c_m, c_z) for _ in range(config.no_blocks))

    def _result(self, m: Tensor, z: Tensor) -> Tensor:
        return z

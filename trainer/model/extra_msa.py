"""The extra-MSA stack: thousands of sequences, narrow channels, only the pairs survive.

Source: AF2 SI 1.7.2, algorithm 18.
"""

from __future__ import annotations

from torch import Tensor, nn

from evofeed.shapes import Float
from evofeed.trainer.model.activation_checkpointing import checkpointed
from evofeed.trainer.model.evoformer import MSABlock
from evofeed.trainer.model.msa_attention import MSAColumnGlobalAttention

__all__ = ["ExtraMSABlock", "ExtraMSAStack"]


class ExtraMSABlock(MSABlock):
    """An Evoformer block with global column attention and an always masked MSA transition."""

    def __init__(
        self,
        *,
        c_m: int,
        c_hidden_msa_att: int,
        no_heads_msa: int,
        inf: float = 1e9,
        eps: float = 1e-8,
        **block: int | float | bool,
    ) -> None:
        super().__init__(
            c_m=c_m,
            c_hidden_msa_att=c_hidden_msa_att,
            no_heads_msa=no_heads_msa,
            inf=inf,
            column_attention=MSAColumnGlobalAttention(
                c_m, c_hidden_msa_att, no_heads_msa, inf, eps
            ),
            **block,  # type: ignore[arg-type]
        )

    def _masks_msa(self, mask_trans: bool) -> bool:
        return True


class ExtraMSAStack(nn.Module):
    """All extra-MSA blocks; returns the pair representation only."""

    def __init__(self, *, no_blocks: int, **block: int | float | bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ExtraMSABlock(**block) for _ in range(no_blocks))  # type: ignore[arg-type]
        self.checkpointing = False

    def forward(
        self,
        m: Float[Tensor, "*B S R c_m"],
        z: Float[Tensor, "*B R R c_z"],
        msa_mask: Float[Tensor, "*B S R"],
        pair_mask: Float[Tensor, "*B R R"],
        mask_trans: bool = False,
    ) -> Float[Tensor, "*B R R c_z"]:
        """The pair representation after the stack."""
        for block in self.blocks:
            m, z = checkpointed(
                block, m, z, msa_mask, pair_mask, mask_trans, enabled=self.checkpointing
            )
        return z

"""The extra-MSA stack: thousands of sequences, narrow channels, only the pairs survive.

Source: AF2 SI 1.7.2, algorithm 18.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from evofeed.trainer.model.evoformer import MSABlock, MSAStack
from evofeed.trainer.model.msa_attention import MSAColumnGlobalAttention


class ExtraMSABlock(MSABlock):
    """An Evoformer block with global column attention and an always masked MSA transition."""

    def __init__(
        self, *, c_m: int, c_hidden_msa_att: int, no_heads_msa: int, inf: float = 1e9,
        eps: float = 1e-8, **block: Any,
    ) -> None:  # fmt: skip
        column = MSAColumnGlobalAttention(c_m, c_hidden_msa_att, no_heads_msa, inf, eps)
        super().__init__(
            column_attention=column, c_m=c_m, c_hidden_msa_att=c_hidden_msa_att,
            no_heads_msa=no_heads_msa, inf=inf, **block,
        )  # fmt: skip

    def _masks_msa(self, mask_trans: bool) -> bool:
        return True


class ExtraMSAStack(MSAStack):
    """All extra-MSA blocks; gives the pair representation only."""

    def __init__(self, *, no_blocks: int, **block: Any) -> None:
        super().__init__(ExtraMSABlock(**block) for _ in range(no_blocks))

    def _result(self, m: Tensor, z: Tensor) -> Tensor:
        return z

"""Outer product mean: the pair update from columns of the MSA (AF2 SI algorithm 10).

Letters: S sequences, R residues, C channels of a projection.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.primitives import LayerNorm, Linear, full_precision, in_float32


class OuterProductMean(nn.Module):
    """Pair update from the outer products of all sequences at residues i and j.

    The bias of `linear_out` is added *before* the division by the number of
    shared sequences, as in AF2 and OpenFold; a pair that shares none gets bias/eps.
    """

    def __init__(self, c_m: int, c_z: int, c_hidden: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.c_hidden = c_hidden
        self.eps = eps
        self.layer_norm = LayerNorm(c_m)
        self.linear_1 = Linear(c_m, c_hidden)
        self.linear_2 = Linear(c_m, c_hidden)
        self.linear_out = Linear(c_hidden**2, c_z, init="final")

    def forward(
        self,
        m: Float[Tensor, "*B S R c_m"],
        mask: Float[Tensor, "*B S R"] | None = None,
    ) -> Float[Tensor, "*B R R c_z"]:
        """Update of the pair representation."""
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask
        m = self.layer_norm(m)
        a = self.linear_1(m)
        b = self.linear_2(m)
        a = a * mask.to(a.dtype)[..., None]
        b = b * mask.to(b.dtype)[..., None]
        dtype = a.dtype
        with in_float32("outer_product", a, b) as (a, b):
            outer = torch.einsum("...sic,...sje->...ijce", a, b).flatten(-2)
            update = self.linear_out(outer)
        with full_precision(mask):  # counts above 256 are not exact in bfloat16
            shared = torch.einsum("...si,...sj->...ij", mask, mask)[..., None] + self.eps
        return (update / shared.to(update.dtype)).to(dtype)  # type: ignore[no-any-return]

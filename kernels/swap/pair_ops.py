"""What the blocks of pairs of all projects do with z: triangle products, and attention.

Dropout and residual join the op before them. A swapped block calls the ops directly with its
modules' parameters: forward hooks on the modules inside do not fire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.gated_attention.op import gated_attention, gated_attention_fits
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.triangle_multiplication.op import (
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.runtime.one_pass import once
from evofeed.kernels.swap.af3_modules import goes_out, packed_triangle_weights
from evofeed.kernels.swap.forms import turns_bias
from evofeed.kernels.swap.parameters import attention_weights, pair_layer, triangle_weights

TRIANGLES = ("tri_mul_out", "tri_mul_in", "tri_att_start", "tri_att_end")


class Dropped(NamedTuple):
    """A shared dropout mask `[B, rows, C]`, or None; whether it is shared along axis J."""

    mask: Tensor | None
    columnwise: bool


def drop_mask(layer: Any, x: Tensor, rows: int) -> Tensor | None:
    """A fresh rowwise mask `[B, rows, C]` of a shared dropout layer; None if it drops nothing."""
    if not layer.training or layer.r == 0.0:
        return None
    shape = (x.shape[0], rows, x.shape[-1])
    ones = once(("ones", shape, x.dtype, x.device), (), lambda: x.new_ones(shape))
    return F.dropout(ones, layer.r, training=True)


def dropout_trouble(layer: Any, axis: int) -> str | None:
    """What is unknown of a dropout layer whose mask is to be shared along an axis, or None."""
    shared = getattr(layer, "batch_dim", getattr(layer, "shared_dim", axis))
    if isinstance(getattr(layer, "r", None), float | int) and shared in (axis, [axis]):
        return None
    return "drops out in a way that no fused op knows"


class PairOps(NamedTuple):
    """The triangle ops of a block with their weights, in the order of their names."""

    multiplications: list[tuple[TriangleWeights, bool, float]]  # outgoing or not, eps
    attentions: list[tuple[AttentionWeights, int, float]]  # starting, ending node: heads, eps
    turned: bool  # the ending node's bias

    @classmethod
    def of(cls, block: Any) -> PairOps:
        """Those of a block whose modules have the names in `TRIANGLES`."""
        products: list[tuple[TriangleWeights, bool, float]] = []
        for m in (block.tri_mul_out, block.tri_mul_in):
            if hasattr(m, "p_in"):
                outgoing = bool(m.outgoing if hasattr(m, "outgoing") else goes_out(m))
                products.append((packed_triangle_weights(m), outgoing, m.norm_in.eps))
            else:
                products.append((triangle_weights(m), m._outgoing, m.layer_norm_in.eps))
        attentions = [
            (attention_weights(m.layer_norm, m.mha, pair_layer(m).weight), m.mha.no_heads,
             m.layer_norm.eps)
            for m in (block.tri_att_start, block.tri_att_end)
        ]  # fmt: skip
        return cls(products, attentions, turns_bias(block.tri_att_end))

    def fit(self, z: Tensor) -> bool:
        """Whether the kernels take pairs `[B, I, J, C]` like these."""
        return all(triangle_multiplication_fits(z, w) for w, _, _ in self.multiplications) and all(
            gated_attention_fits(z, w, heads) for w, heads, _ in self.attentions
        )

    def run(
        self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped], multiply_first: bool = True
    ) -> Tensor:
        """z after both; `drops` are of the four modules in the order in which they work."""
        if multiply_first:
            return self._attend(self._multiply(z, mask, drops), mask, drops)
        return self._multiply(self._attend(z, mask, drops), mask, drops)

    def run_with(
        self, z: Tensor, mask: Tensor | None, rows: Any, columns: Any, multiply_first: bool = True
    ) -> Tensor:
        """z after both, with layers' dropout: rows share a mask, at the ending node columns."""
        order = (False, False, False, True) if multiply_first else (False, True, False, False)
        drops = (
            Dropped(drop_mask(columns if ending else rows, z, z.shape[1]), ending)
            for ending in order
        )
        return self.run(z, mask, drops, multiply_first)

    def _multiply(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        for weights, outgoing, eps in self.multiplications:
            drop = next(drops)
            z = triangle_multiplication(
                z, weights, outgoing=outgoing, mask=mask, residual=True, drop_mask=drop.mask,
                drop_columnwise=drop.columnwise, eps=eps,
            )  # fmt: skip
        return z

    def _attend(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        for ending, (weights, heads, eps) in enumerate(self.attentions):
            drop = next(drops)
            z = gated_attention(
                z, weights, heads, mask=mask, columns=bool(ending),
                turned=bool(ending) and self.turned, residual=True, drop_mask=drop.mask,
                drop_columnwise=drop.columnwise, eps=eps,
            )  # fmt: skip
        return z

"""Blocks of AF3-class models whose parts are all fused: recorded as one, with their own forward.

What is between the parts are sums of the single track and of the MSA, small beside the pairs.
So the forward stays the project's, dropout included; `to_fused(cuda_graphs=True)` records the
block whole instead of part by part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.swap import af3_attention, af3_averages, af3_blocks, af3_modules, modules
from evofeed.kernels.swap.forms import children, signature_trouble


class FusedBlock(Recordable):
    """A block of fused parts: its own forward calls them."""


class StackForm(NamedTuple):
    """A block's parts that must be fused, others that it may have, and its arguments."""

    parts: frozenset[str]
    others: frozenset[str]
    arguments: tuple[str, ...]


FORMS = (
    StackForm(  # OpenFold3's PairFormerBlock
        frozenset({"pair_stack", "attn_pair_bias", "single_transition"}), frozenset(),
        ("s", "z", "single_mask", "pair_mask"),
    ),
    StackForm(  # OpenFold3's MSAModuleBlock
        frozenset({"msa_att_row", "msa_transition", "outer_product_mean", "pair_stack"}),
        frozenset({"msa_dropout_layer"}), ("m", "z", "msa_mask", "pair_mask"),
    ),
    StackForm(  # its last
        frozenset({"outer_product_mean", "pair_stack"}), frozenset(),
        ("m", "z", "msa_mask", "pair_mask"),
    ),
    StackForm(  # Boltz's MSALayer
        frozenset(
            {"pair_weighted_averaging", "msa_transition", "outer_product_mean",
             "pairformer_layer"}
        ),
        frozenset(), ("z", "m", "token_mask", "msa_mask"),
    ),
)  # fmt: skip


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which blocks are taken: those of a known form, all of whose parts are fused."""
    form = next((f for f in FORMS if children(module) == f.parts | f.others), None)
    if form is None or _is_af2(module):
        return None
    for name in sorted(form.parts):
        if not _is_fused(getattr(module, name)):
            return f"{name} is of a form that no fused op knows"
    return signature_trouble(module, *form.arguments) or FusedBlock


def _is_af2(module: Any) -> bool:
    """AF2's blocks share names with these; `blocks` knows them."""
    return hasattr(getattr(module, "msa_att_row", None), "mha")


def _is_fused(module: nn.Module) -> bool:
    if isinstance(module, Fused):
        return True
    rooms = (modules, af3_modules, af3_averages, af3_attention, af3_blocks)
    answer = next((found for room in rooms if (found := room.rule(module)) is not None), None)
    return isinstance(answer, type)

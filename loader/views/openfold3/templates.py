"""Templates of the chains of a crop: drawn, and aligned to its tokens, as in OpenFold3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.loader.views.laid import Laid, Sparse, hot
from evofeed.protein.alignment import Alignment
from evofeed.protein.residues import GAP

BINS: Final = 39
"""Bins of the template distogram."""


def plan_templates(
    view: EntryView,
    alignments: Sequence[Alignment],
    crop: Crop,
    draws: SampleDraws,
    config: OpenFold3Config,
) -> dict[str, np.ndarray]:
    """Residue and N, CA, C, CB of each slot at each token; empty where no chain has templates.

    A template without residues in the crop leaves its slot to the next one.
    """
    restype = np.full([config.max_templates, len(crop)], GAP, np.uint8)
    position = np.full([*restype.shape, 4, 3], np.nan, np.float32)
    for chain in sorted(set(crop.chain.tolist()), key=lambda chain: str(view.chain_name[chain])):
        tokens = np.flatnonzero(crop.chain == chain)
        alignment = view.chain_alignment[chain]
        hits = alignments[alignment].templates if alignment >= 0 else None
        is_protein = view.chain_type[chain] == ChainType.PROTEIN
        if not hits or not hits.name or not is_protein or len(tokens) < config.min_template_tokens:
            continue
        columns = view.residue_index[crop.residue[tokens]] - 1
        slot = 0
        order, count = draws.permutation_and_size(Purpose.TEMPLATES, len(hits.name), 0)
        for template in order[: min(count, config.max_templates)].tolist():
            aligned = hits.restype[template, columns] != GAP
            if aligned.any():
                restype[slot, tokens[aligned]] = hits.restype[template, columns[aligned]]
                position[slot, tokens[aligned]] = hits.position[template, columns[aligned]]
                slot += 1
    if (restype == GAP).all():
        return {}
    return {"template_restype": restype, "template_position": position}


def lay_out_templates(drawn: dict[str, np.ndarray], config: OpenFold3Config) -> Laid:
    """Features of empty template slots, and the drawn templates."""
    slots, size = config.max_templates, config.token_budget
    return {
        "template_pseudo_beta_mask": Sparse((slots, size), np.float32),
        "template_backbone_frame_mask": Sparse((slots, size), np.float32),
        "template_restype": hot(np.full((slots, size), GAP_TYPE), NUM_RESTYPES, np.int32),
        "template_distogram": Sparse((slots, size, size, BINS), np.float32),
        "template_unit_vector": Sparse((slots, size, size, 3), np.float32),
        **{f"_{name}": value for name, value in drawn.items()},
    }

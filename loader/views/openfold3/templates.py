"""Templates of the chains of a crop, as OpenFold3 draws them and lays them on its tokens."""

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
"""Of the distogram."""


def plan_templates(
    view: EntryView,
    alignments: Sequence[Alignment],
    crop: Crop,
    draws: SampleDraws,
    config: OpenFold3Config,
) -> dict[str, np.ndarray]:
    """Residue and N, CA, C, CB of each slot at each token; nothing where no chain has templates.

    A template that does not reach into the crop leaves its slot to the next one.
    """
    restype = np.full([config.max_templates, len(crop)], GAP, np.uint8)
    position = np.full([*restype.shape, 4, 3], np.nan, np.float32)
    for row in sorted(set(crop.chain.tolist()), key=lambda row: str(view.chain_name[row])):
        here = np.flatnonzero(crop.chain == row)
        number = view.chain_alignment[row]
        found = alignments[number].templates if number >= 0 else None
        is_protein = view.chain_type[row] == ChainType.PROTEIN
        if not found or not found.name or not is_protein or len(here) < config.min_template_tokens:
            continue
        columns = view.residue_index[crop.residue[here]] - 1
        slot = 0
        order, wanted = draws.part(Purpose.TEMPLATES, len(found.name), 0)
        for template in order[: min(wanted, config.max_templates)].tolist():
            faced = found.restype[template, columns] != GAP
            if faced.any():
                restype[slot, here[faced]] = found.restype[template, columns[faced]]
                position[slot, here[faced]] = found.position[template, columns[faced]]
                slot += 1
    if (restype == GAP).all():
        return {}
    return {"template_restype": restype, "template_position": position}


def lay_out_templates(drawn: dict[str, np.ndarray], config: OpenFold3Config) -> Laid:
    """Empty slots of templates, and the templates that there are."""
    slots, size = config.max_templates, config.token_budget
    return {
        "template_pseudo_beta_mask": Sparse((slots, size), np.float32),
        "template_backbone_frame_mask": Sparse((slots, size), np.float32),
        "template_restype": hot(np.full((slots, size), GAP_TYPE), NUM_RESTYPES, np.int32),
        "template_distogram": Sparse((slots, size, size, BINS), np.float32),
        "template_unit_vector": Sparse((slots, size, size, 3), np.float32),
        **{f"_{name}": value for name, value in drawn.items()},
    }

"""Templates of the chains of a crop, as OpenFold3 draws them and lays them on its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.draws import OpenFold3Draws
from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.protein.alignment import Alignment
from evofeed.protein.residues import GAP


def plan_templates(
    view: EntryView,
    alignments: Sequence[Alignment],
    tokens: Integer[np.ndarray, " T"],
    draws: OpenFold3Draws,
    config: OpenFold3Config,
) -> dict[str, np.ndarray]:
    """Residue and N, CA, C, CB of each slot at each token; nothing where no chain has templates.

    A template that does not reach into the crop leaves its slot to the next one.
    """
    residue = view.token_residue[tokens]
    chain = view.residue_chain()[residue]
    restype = np.full([config.max_templates, len(tokens)], GAP, np.uint8)
    position = np.full([*restype.shape, 4, 3], np.nan, np.float32)
    for row in sorted(set(chain.tolist()), key=lambda row: str(view.chain_name[row])):
        here = np.flatnonzero(chain == row)
        number = view.chain_alignment[row]
        found = alignments[number].templates if number >= 0 else None
        is_protein = view.chain_type[row] == ChainType.PROTEIN
        if not found or not found.name or not is_protein or len(here) < config.min_template_tokens:
            continue
        columns = view.residue_index[residue[here]] - 1
        slot = 0
        for template in draws.templates(len(found.name), config.max_templates).tolist():
            faced = found.restype[template, columns] != GAP
            if faced.any():
                restype[slot, here[faced]] = found.restype[template, columns[faced]]
                position[slot, here[faced]] = found.position[template, columns[faced]]
                slot += 1
    if (restype == GAP).all():
        return {}
    return {"template_restype": restype, "template_position": position}

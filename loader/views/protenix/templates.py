"""Templates of the chains of a crop, as Protenix draws them and lays them on its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.columns import GAP_TYPE, RESTYPES
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import ChainType, ProtenixView
from evofeed.loader.views.laid import Laid, Sparse
from evofeed.loader.views.openfold3.templates import BINS
from evofeed.loader.views.protenix.vocabulary import atoms_of
from evofeed.protein.alignment import Alignment, TemplateHits
from evofeed.protein.residues import ATOM37_NUM, ATOM_ORDER, GAP

_ANY_ORDER: Final = 20
"""Hits whose order is drawn, the first ones."""
_SHORTEST: Final = 5
"""Residues of a sequence with templates."""
PLACES: Final = 14
"""Atoms that a residue of a protein can have."""
_ATOMS: Final = 24
"""Atoms that the features have room for."""


def plan_templates(
    view: ProtenixView,
    alignments: Sequence[Alignment],
    chains: Sequence[int],
    crop: Crop,
    draws: SampleDraws,
    config: ProtenixConfig,
) -> Laid:
    """Residue and atoms of each slot at each token; copies of a sequence have the same.

    The crop's chains stand in Protenix's order.
    """
    slots = (config.max_templates, len(crop))
    if not config.templates:
        return _named(
            template_restype=np.full(slots, GAP_TYPE),
            template_all_atom_mask=Sparse((*slots, ATOM37_NUM), np.float32),
            template_all_atom_positions=Sparse((*slots, ATOM37_NUM, 3), np.float32),
        )
    restype = np.full(slots, GAP_TYPE, np.int64)
    position = np.full([*restype.shape, PLACES, 3], np.nan, np.float32)
    drawn: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    if config.filled_templates:
        restype[1:] = RESTYPES.index("ALA")
    for chain in chains:
        number = int(view.chain_alignment[chain])
        hits = alignments[number].hits if number >= 0 else None
        if hits is None or view.chain_polymer[chain] != ChainType.PROTEIN:
            continue
        if number not in drawn:
            rows = drawn_templates(hits, draws, config.max_templates)
            drawn[number] = hits.restype[rows], np.array([hits.atoms(row) for row in rows])
        types, atoms = drawn[number]
        here = np.flatnonzero(crop.chain == chain)
        columns = view.residue_index[crop.residue[here]] - 1
        columns[(columns < 0) | (columns >= hits.restype.shape[1])] = 0
        if hits.restype.shape[1] < _SHORTEST or not len(types):
            continue
        faced = np.where(types == GAP, GAP_TYPE, types)[:, columns]
        places = _TAKEN[bool(config.filled_templates)][faced]
        shown = np.take_along_axis(atoms[:, columns], np.abs(places)[..., None], 2)
        shown[places < 0] = np.nan
        restype[: len(types), here] = faced
        position[: len(types), here] = shown
    pairs = (*slots, slots[1])
    return _named(
        template_aatype=restype,
        template_atom_positions=Sparse((*slots, _ATOMS, 3), np.float32),
        template_atom_mask=Sparse((*slots, _ATOMS), bool),
        template_pseudo_beta_mask=Sparse(pairs, np.float32),
        template_distogram=Sparse((*pairs, BINS), np.float32),
        template_unit_vector=Sparse((*pairs, 3), np.float32),
        template_backbone_frame_mask=Sparse(pairs, np.float32),
    ) | {"_template_position": position}


def _named(**features: np.ndarray | Sparse) -> Laid:
    return {f"input_feature_dict.{name}": value for name, value in features.items()}


def drawn_templates(hits: TemplateHits, draws: SampleDraws, most: int) -> list[int]:
    """Hits whose templates a sequence has: different ones, in the order drawn."""
    sequences, first = np.unique(hits.sequence, return_index=True)
    rows = np.sort(first[sequences >= 0])
    order, wanted = draws.part(Purpose.TEMPLATES, min(len(rows), _ANY_ORDER), 0)
    rows[: len(order)] = rows[order]
    found: dict[bytes, int] = {}
    for row in rows.tolist():
        if len(found) >= min(wanted, most):
            break
        if (hits.restype[row] != GAP).any():
            found.setdefault(hits.restype[row].tobytes(), row)
    return list(found.values())


def _taken(filled: bool) -> Integer[np.ndarray, "32 14"]:
    """Which of the 37 atoms stands at each place of a residue; -1 for none, filled up with N."""
    table = np.full((len(RESTYPES) + 1, PLACES), 0 if filled else -1, np.int64)
    for code, name in enumerate(RESTYPES[:20] if filled else RESTYPES[:21]):
        own = [ATOM_ORDER[atom] for atom in atoms_of(name)]
        table[code, : len(own)] = own
    return table


_TAKEN: Final = {filled: _taken(filled) for filled in (False, True)}

"""Templates of the chains of a crop: drawn, and aligned to its tokens, as in Protenix."""

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

_NUM_SHUFFLED: Final = 20
"""Number of first hits whose order is drawn."""
_MIN_RESIDUES: Final = 5
"""Residues of a sequence with templates, at least."""
NUM_ATOM14: Final = 14
"""Atoms of a protein residue, at most."""
_ATOMS: Final = 24
"""Atoms of a residue in the features."""


def plan_templates(
    view: ProtenixView,
    alignments: Sequence[Alignment],
    chains: Sequence[int],
    crop: Crop,
    draws: SampleDraws,
    config: ProtenixConfig,
) -> Laid:
    """Residue and atoms of each slot at each token; copies of a sequence have the same templates.

    `chains` are those of the crop in Protenix's order.
    """
    slots = (config.max_templates, len(crop))
    if not config.templates:
        return _input_features(
            template_restype=np.full(slots, GAP_TYPE),
            template_all_atom_mask=Sparse((*slots, ATOM37_NUM), np.float32),
            template_all_atom_positions=Sparse((*slots, ATOM37_NUM, 3), np.float32),
        )
    restype = np.full(slots, GAP_TYPE, np.int64)
    position = np.full([*restype.shape, NUM_ATOM14, 3], np.nan, np.float32)
    by_alignment: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    if config.filled_templates:
        restype[1:] = RESTYPES.index("ALA")
    for chain in chains:
        number = int(view.chain_alignment[chain])
        hits = alignments[number].hits if number >= 0 else None
        if hits is None or view.chain_polymer[chain] != ChainType.PROTEIN:
            continue
        if number not in by_alignment:
            rows = drawn_templates(hits, draws, config.max_templates)
            by_alignment[number] = hits.restype[rows], np.array([hits.atoms(row) for row in rows])
        types, atoms = by_alignment[number]
        tokens = np.flatnonzero(crop.chain == chain)
        columns = view.residue_index[crop.residue[tokens]] - 1
        columns[(columns < 0) | (columns >= hits.restype.shape[1])] = 0
        if hits.restype.shape[1] < _MIN_RESIDUES or not len(types):
            continue
        residues = np.where(types == GAP, GAP_TYPE, types)[:, columns]
        atom_rows = _ATOM14[bool(config.filled_templates)][residues]
        atoms_at_tokens = np.take_along_axis(atoms[:, columns], np.abs(atom_rows)[..., None], 2)
        atoms_at_tokens[atom_rows < 0] = np.nan
        restype[: len(types), tokens] = residues
        position[: len(types), tokens] = atoms_at_tokens
    pairs = (*slots, slots[1])
    return _input_features(
        template_aatype=restype,
        template_atom_positions=Sparse((*slots, _ATOMS, 3), np.float32),
        template_atom_mask=Sparse((*slots, _ATOMS), bool),
        template_pseudo_beta_mask=Sparse(pairs, np.float32),
        template_distogram=Sparse((*pairs, BINS), np.float32),
        template_unit_vector=Sparse((*pairs, 3), np.float32),
        template_backbone_frame_mask=Sparse(pairs, np.float32),
    ) | {"_template_position": position}


def _input_features(**features: np.ndarray | Sparse) -> Laid:
    return {f"input_feature_dict.{name}": value for name, value in features.items()}


def drawn_templates(hits: TemplateHits, draws: SampleDraws, limit: int) -> list[int]:
    """Rows of the hits that are the templates of a sequence: distinct ones, in the drawn order."""
    sequences, first = np.unique(hits.sequence, return_index=True)
    rows = np.sort(first[sequences >= 0])
    order, count = draws.permutation_and_size(Purpose.TEMPLATES, min(len(rows), _NUM_SHUFFLED), 0)
    rows[: len(order)] = rows[order]
    by_restype: dict[bytes, int] = {}
    for row in rows.tolist():
        if len(by_restype) >= min(count, limit):
            break
        if (hits.restype[row] != GAP).any():
            by_restype.setdefault(hits.restype[row].tobytes(), row)
    return list(by_restype.values())


def _atom14_table(filled: bool) -> Integer[np.ndarray, "32 14"]:
    """Index among the 37 atoms of a residue's 14; the others are -1, or N (0) where `filled`."""
    table = np.full((len(RESTYPES) + 1, NUM_ATOM14), 0 if filled else -1, np.int64)
    for code, name in enumerate(RESTYPES[:20] if filled else RESTYPES[:21]):
        rows = [ATOM_ORDER[atom] for atom in atoms_of(name)]
        table[code, : len(rows)] = rows
    return table


_ATOM14: Final = {filled: _atom14_table(filled) for filled in (False, True)}

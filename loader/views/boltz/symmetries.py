"""Interchangeable atoms of a Boltz entry: the inputs of its label permutation."""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

import numpy as np

from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.columns import RESTYPES
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import EntryView
from evofeed.loader.views.laid import Laid, OnHost

_MAX_LISTED: Final = 100
"""Assignments of chains in a sample, at most."""
_MAX_SEARCHED: Final = 1000
"""Combinations of chains that are tried for them."""
_SWAPS: Final = {
    **{code: [(6, 7), (7, 6), (8, 9), (9, 8)] for code in (15, 20)},  # PHE, TYR
    5: [(6, 7), (7, 6)],  # ASP
    8: [(7, 8), (8, 7)],  # GLU
    **{code: [(1, 2), (2, 1)] for code in (23, 24, 25, 26, 28, 29, 30, 31)},  # OP1, OP2
}
_STANDARD: Final = frozenset(RESTYPES) - {"UNK", "N", "DN"}
"""Residues whose swaps are those of `_SWAPS`; the others have those of their component."""


def symmetry_features(view: EntryView, crop: Crop, draws: SampleDraws, config: BoltzConfig) -> Laid:
    """All atoms of the entry, the crop's indices among them, and three lists as JSON."""
    tokens = zip(crop.start[:-1].tolist(), view.token_type[crop.token].tolist(), strict=True)
    symmetries = {
        "chain_symmetries": _chains(view, crop, draws, config),
        "amino_acids_symmetries": [
            [[(i + start, j + start) for i, j in _SWAPS[code]]]
            for start, code in tokens
            if code in _SWAPS
        ],
        "ligand_symmetries": _components(view, crop),
    }
    return {
        "all_coords": view.atom_position.astype(np.float32),
        "all_resolved_mask": view.atom_present.astype(np.float32),
        "crop_to_all_atom_map": crop.atom.astype(np.float32),
        "_symmetries": OnHost(np.frombuffer(bytearray(json.dumps(symmetries).encode()), np.uint8)),
    }


def _chains(view: EntryView, crop: Crop, draws: SampleDraws, config: BoltzConfig) -> list[Any]:
    """Assignments of the crop's chains to chains of the same entity and number of atoms."""
    bounds = view.residue_atom[view.chain_residue]
    spans, sizes = list(itertools.pairwise(bounds.tolist())), np.diff(bounds)
    swaps = []
    for chain in np.unique(crop.chain).tolist():
        copies = (view.chain_entity == view.chain_entity[chain]) & (sizes == sizes[chain])
        chains = np.flatnonzero(copies).tolist()
        swaps.append([(*spans[chain], *spans[other], chain, other) for other in chains])
    if config.first_combinations:
        combinations = itertools.islice(itertools.product(*swaps), _MAX_SEARCHED)
        assignments = [c for c in combinations if len({swap[-1] for swap in c}) == len(c)]
    else:
        assignments = list(itertools.islice(_assignments(swaps, (), frozenset()), _MAX_SEARCHED))
    if len(assignments) > _MAX_LISTED:
        chosen = draws.subset(Purpose.COMBINATIONS, np.arange(len(assignments)), _MAX_LISTED)
        assignments = [assignments[number] for number in chosen.tolist()]
    return assignments or [()]


def _assignments(swaps: list[Any], chosen: tuple[Any, ...], taken: frozenset[int]) -> Any:
    if len(chosen) == len(swaps):
        yield chosen
        return
    for swap in swaps[len(chosen)]:
        if swap[-1] not in taken:
            yield from _assignments(swaps, (*chosen, swap), taken | {swap[-1]})


def _components(view: EntryView, crop: Crop) -> list[list[list[tuple[int, int]]]]:
    """Symmetries of ligands and modified residues, as swaps of the crop's atoms."""
    _, first = np.unique(crop.residue, return_index=True)
    components = []
    for token in np.sort(first):
        number = crop.residue[token]
        if str(view.residue_name[number]) in _STANDARD:
            continue
        rows = view.atom_reference[view.residue_atom[number] : view.residue_atom[number + 1]]
        molecule = int(view.component_molecule[view.residue_component[number]])
        if molecule < 0 or (rows < 0).any():
            continue
        start = int(crop.start[token])
        swaps = [
            [(i + start, j + start) for i, j in enumerate(order) if i != j]
            for order in view.orders_of(molecule, rows).tolist()
        ]
        if swaps := [swap for swap in swaps if swap]:
            components.append(swaps)
    return components

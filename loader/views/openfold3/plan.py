"""An OpenFold3 sample as the host decides it: small arrays that the device makes features of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.cells import ShownRows, letter_table, row_features
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES, RESTYPES, UNKNOWN
from evofeed.loader.views.config import CONFIDENCE_LOSSES, OpenFold3Config
from evofeed.loader.views.draws import OpenFold3Draws, rotations
from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.loader.views.openfold3.crop import crop_entry
from evofeed.loader.views.openfold3.labels import Exchange, Layout, exchange, lay_out
from evofeed.loader.views.openfold3.molecules import Molecules, molecules_of
from evofeed.loader.views.openfold3.rows import plan_rows
from evofeed.loader.views.openfold3.templates import plan_templates
from evofeed.protein.alignment import Alignment

ON_HOST: Final = frozenset({"order_counts", "order_sizes"})
"""Arrays of a plan that the host reads to know shapes."""
LETTER_TYPES: Final = {
    ChainType.PROTEIN: letter_table(0, "ARNDCQEGHILKMFPSTWYV", UNKNOWN, GAP_TYPE),
    ChainType.RNA: letter_table(21, "AGCU", RESTYPES.index("N"), GAP_TYPE),
}
"""Residue types of the letters of an alignment."""


def plan_sample(
    view: EntryView,
    alignments: Sequence[Alignment],
    datapoint: Sequence[int],
    draws: OpenFold3Draws,
    config: OpenFold3Config,
) -> dict[str, np.ndarray]:
    """Crop, labels, conformers and rows of one sample.

    Raises:
        ValueError: no token of the entry is resolved, so that no crop can be made.
    """
    crop = crop_entry(view, tuple(datapoint), draws, config)
    molecules = molecules_of(view, crop.chains)
    layout = lay_out(view, molecules)
    taken = np.zeros(view.num_tokens, bool)
    taken[crop.tokens] = True
    in_crop = taken[layout.token]
    numbers = np.flatnonzero(in_crop)
    tokens = layout.token[numbers]
    labels = exchange(view, layout, molecules, crop, in_crop)
    packed = _tokens(view, layout, molecules, numbers)
    packed |= _chains(view, molecules, layout.token_chain[numbers], config)
    packed["num_atoms"] = view.token_atoms[tokens].astype(np.int32)
    packed["bonds"] = _bonds(view, tokens)
    packed |= _labels(view, layout, molecules, labels)
    packed |= _atoms(view, tokens, draws)
    packed |= _rows(view, alignments, tokens, draws, config)
    packed |= plan_templates(view, alignments, tokens, draws, config)
    packed["loss_weights"] = loss_weights(view.resolution, config)
    return packed


def _tokens(
    view: EntryView, layout: Layout, molecules: Molecules, numbers: Integer[np.ndarray, " T"]
) -> dict[str, np.ndarray]:
    """What the tokens of the crop and those of the labels have alike."""
    token = layout.token[numbers]
    chain = layout.token_chain[numbers]
    component = view.residue_component[view.token_residue[token]]
    place = np.zeros(len(view.component_molecule), np.int64)
    place[layout.component] = layout.component_in_molecule + 1
    return {
        "token_index": numbers.astype(np.int32),
        "restype": view.token_type[token].astype(np.uint8),
        "chain_type": view.chain_type[molecules.chain[chain]].astype(np.uint8),
        "is_atomized": view.token_atomized[token],
        "mol_entity_id": molecules.entity[chain].astype(np.int32),
        "mol_sym_id": molecules.sym[chain].astype(np.int32),
        "mol_sym_token_index": layout.token_in_molecule[numbers].astype(np.int32),
        "mol_sym_component_id": place[component].astype(np.int32),
        "residue_index": view.residue_index[view.token_residue[token]].astype(np.int32),
    }


def _chains(
    view: EntryView, molecules: Molecules, place: Integer[np.ndarray, " T"], config: OpenFold3Config
) -> dict[str, np.ndarray]:
    """Numbers of the chains of the crop, from 1, and of the copies of each entity."""
    places, inverse = np.unique(place, return_inverse=True)
    rows = molecules.chain[places]
    asym = np.arange(1, len(rows) + 1)
    if config.text_order:
        asym[np.argsort(view.chain_name[rows], kind="stable")] = np.arange(1, len(rows) + 1)
    entity = view.chain_entity[rows]
    earlier = np.tril(entity[:, None] == entity[None], -1)
    sym = earlier.sum(1) + 1
    return {
        "asym_id": asym[inverse].astype(np.int32),
        "entity_id": entity[inverse].astype(np.int32),
        "sym_id": sym[inverse].astype(np.int32),
    }


def _bonds(view: EntryView, tokens: Integer[np.ndarray, " T"]) -> Integer[np.ndarray, "b 2"]:
    """Places in the crop of bonded tokens that are atoms both."""
    split = np.flatnonzero(view.token_atomized[tokens])
    place = np.full(view.num_atoms, -1, np.int32)
    place[view.token_atom[tokens[split]]] = split
    return view.bonded(place)


def _labels(
    view: EntryView, layout: Layout, molecules: Molecules, labels: Exchange
) -> dict[str, np.ndarray]:
    """Atoms whose labels may change places, their tokens, and the orders of atoms."""
    fresh = np.diff(labels.token, prepend=-1) != 0
    first = np.flatnonzero(fresh)
    tokens = _tokens(view, layout, molecules, labels.token[first])
    del tokens["residue_index"]
    counts = np.diff(np.append(first, len(labels.token)))
    return {
        **{f"label_{name}": value for name, value in tokens.items()},
        "label_num_atoms": counts.astype(np.int32),
        "label_position": view.atom_position[labels.atom].astype(np.float32),
        "label_resolved": view.atom_present[labels.atom],
        "order_counts": labels.counts.astype(np.int32),
        "order_sizes": labels.sizes.astype(np.int32),
        "orders": labels.orders.astype(np.int32),
    }


def _atoms(
    view: EntryView, tokens: Integer[np.ndarray, " T"], draws: OpenFold3Draws
) -> dict[str, np.ndarray]:
    """Conformers of the crop's components, and how each is turned and moved."""
    atom = view.atoms_of(tokens)
    component = np.repeat(
        view.residue_component[view.token_residue[tokens]], view.token_atoms[tokens]
    )
    uid = np.cumsum(np.diff(component, prepend=component[:1]) != 0)
    reference = view.atom_reference[atom]
    mask = view.molecule_mask[reference]
    chosen = draws.conformers(int(uid[-1]) + 1, len(view.molecule_position))
    position = view.molecule_position[chosen[uid], reference]
    turn, shift = draws.moves(np.bincount(uid, mask) > 0)
    return {
        "conformer": np.where(mask[:, None], position, 0).astype(np.float32),
        "ref_mask": mask,
        "element": view.atom_element[atom].astype(np.uint8),
        "charge": view.atom_charge[atom].astype(np.int8),
        "atom_name": view.atom_name[atom].astype(np.uint8),
        "space_uid": uid.astype(np.int32),
        "rotation": rotations(turn),
        "shift": shift,
    }


def _rows(
    view: EntryView,
    alignments: Sequence[Alignment],
    tokens: Integer[np.ndarray, " T"],
    draws: OpenFold3Draws,
    config: OpenFold3Config,
) -> dict[str, np.ndarray]:
    """Residue types and deletions of the rows at the tokens' columns, and profiles."""
    residue = view.token_residue[tokens]
    chain = view.residue_chain()[residue]
    in_crop = np.zeros(view.num_chains, bool)
    in_crop[chain] = True
    plan = plan_rows(view, in_crop, alignments, draws, config)
    count = len(plan.rows[0]) if plan.rows else 1
    types = np.full([count, len(tokens)], GAP_TYPE, np.uint8)
    if not config.unmasked_padding:
        types[0] = view.token_type[tokens]
    depth = np.ones(len(tokens), np.int32)
    mine = []
    for row, rows, deep, every in zip(plan.chains, plan.rows, plan.depth, plan.main, strict=True):
        depth[chain == row] = deep
        table = LETTER_TYPES[ChainType(view.chain_type[row])]
        others = np.append(-1, rows[1:])  # the query has no deletions
        alignment = alignments[view.chain_alignment[row]]
        mine.append(ShownRows(row, alignment, table, rows, others, every))
    profile = np.zeros([len(tokens), NUM_RESTYPES], np.float32)
    columns = view.residue_index[residue] - 1
    return {
        **row_features(types, profile, chain, columns, mine),
        "depth": depth,
        "num_paired": np.array([plan.num_paired], np.int32),
    }


def loss_weights(resolution: float, config: OpenFold3Config) -> np.ndarray:
    """Weights of `config.loss_weights`; none of confidence where the resolution is unusual."""
    low, high = config.resolutions
    usual = low <= resolution <= high
    return np.array(
        [
            value if usual or name not in CONFIDENCE_LOSSES else 0.0
            for name, value in config.loss_weights
        ],
        np.float32,
    )

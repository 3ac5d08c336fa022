"""An OpenFold3 sample as the host decides it, its features laid out for the device.

Names and values are those of its featurizer. Tokens are padded to the config's, atoms and rows are
as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.cells import fill_rows
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES
from evofeed.loader.views.config import CONFIDENCE_LOSSES, OpenFold3Config
from evofeed.loader.views.crop import Crop, centred
from evofeed.loader.views.entry_view import IS_KIND, EntryView
from evofeed.loader.views.laid import Laid, OnHost, Sparse, deleted, hot, longer, symmetric
from evofeed.loader.views.openfold3.crop import crop_entry
from evofeed.loader.views.openfold3.labels import Layout, exchange, lay_out
from evofeed.loader.views.openfold3.molecules import Molecules, molecules_of
from evofeed.loader.views.openfold3.rows import plan_rows
from evofeed.loader.views.openfold3.templates import lay_out_templates, plan_templates
from evofeed.protein.alignment import Alignment
from evofeed.protein.entry_record import run_starts
from evofeed.protein.ruleset_section import copies_of

NUM_ELEMENTS: Final = 119
"""Atomic numbers from 1, the last one for what is unknown."""
_CHARACTERS: Final = 64


def plan_sample(
    view: EntryView,
    alignments: Sequence[Alignment],
    datapoint: Sequence[int],
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Laid:
    """Crop, labels, conformers and rows of one sample.

    Raises:
        ValueError: no token of the entry is resolved, so that no crop can be made.
    """
    kept = crop_entry(view, tuple(datapoint), draws, config)
    molecules = molecules_of(view, kept.chains)
    layout = lay_out(view, molecules)
    taken = np.zeros(view.num_tokens, bool)
    taken[kept.tokens] = True
    in_crop = taken[layout.token]
    numbers = np.flatnonzero(in_crop)
    crop = Crop.of(view, layout.token[numbers])
    atom, token, orders = exchange(
        view, layout, molecules, crop, in_crop, spatial=kept.strategy.is_spatial
    )
    size = config.token_budget
    laid = _tokens(view, layout, molecules, numbers, crop.atoms, size)
    chains = _chains(view, molecules, layout.token_chain[numbers], config)
    chains["residue_index"] = view.residue_index[crop.residue]
    laid |= {name: longer(value, size, np.int32) for name, value in chains.items()}
    laid["token_bonds"] = symmetric(_bonds(view, crop), size, np.int32)
    laid["cyclic_mask"] = Sparse((size,), bool)
    laid |= _labels(view, layout, molecules, atom, token)
    laid |= {name: OnHost(orders[name]) for name in ("_order_counts", "_order_sizes")}
    laid["_orders"] = orders["_orders"]
    laid |= _atoms(view, crop, draws)
    laid |= _rows(view, alignments, crop, draws, config)
    laid |= lay_out_templates(plan_templates(view, alignments, crop, draws, config), config)
    return laid | loss_weights(view.resolution, config)


def _tokens(
    view: EntryView,
    layout: Layout,
    molecules: Molecules,
    numbers: Integer[np.ndarray, " T"],
    atoms: Integer[np.ndarray, " T"],
    size: int,
) -> Laid:
    """What the tokens of the crop and those of the labels have alike, `size` of them."""
    token = layout.token[numbers]
    chain = layout.token_chain[numbers]
    component = view.residue_component[view.token_residue[token]]
    place = np.zeros(len(view.component_molecule), np.int64)
    place[layout.component] = layout.component_in_molecule + 1
    kind = view.chain_type[molecules.chain[chain]]
    features = {
        "token_index": numbers,
        "is_atomized": view.token_atomized[token],
        "mol_entity_id": molecules.entity[chain],
        "mol_sym_id": molecules.sym[chain],
        "mol_sym_token_index": layout.token_in_molecule[numbers],
        "mol_sym_component_id": place[component],
        "num_atoms_per_token": atoms,
        "start_atom_index": np.cumsum(atoms) - atoms,
        **{name: kind == number for name, number in IS_KIND.items()},
    }
    return {
        **{name: longer(value, size, np.int32) for name, value in features.items()},
        "restype": hot(view.token_type[token], NUM_RESTYPES, np.int32, size),
        "token_mask": longer(np.ones(len(token)), size, np.float32),
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
    sym = copies_of(entity) + 1
    return {"asym_id": asym[inverse], "entity_id": entity[inverse], "sym_id": sym[inverse]}


def _bonds(view: EntryView, crop: Crop) -> Integer[np.ndarray, "b 2"]:
    """Places in the crop of bonded tokens that are atoms both."""
    ends = crop.owner[crop.bonds(view)]
    both: np.ndarray = ends[view.token_atomized[crop.token][ends].all(1)]
    return both


def _labels(
    view: EntryView,
    layout: Layout,
    molecules: Molecules,
    atom: Integer[np.ndarray, " b"],
    token: Integer[np.ndarray, " b"],
) -> Laid:
    """Atoms whose labels may change places, and their tokens, numbers in the layout."""
    first = run_starts(token)
    counts = np.diff(np.append(first, len(token)))
    truth = _tokens(view, layout, molecules, token[first], counts, len(first))
    truth |= {
        "atom_mask": np.ones(len(atom), np.float32),
        "atom_positions": view.atom_position[atom].astype(np.float32),
        "atom_resolved_mask": view.atom_present[atom].astype(np.float32),
    }
    return {f"ground_truth.{name}": value for name, value in truth.items()}


def _atoms(view: EntryView, crop: Crop, draws: SampleDraws) -> Laid:
    """Atoms of the crop's components, their conformers turned and moved.

    Masked ones are zeros. Source: AF3 SI, algorithm 19.
    """
    atom, uid = crop.atom, crop.run
    reference = view.atom_reference[atom]
    mask = view.molecule_mask[reference]
    chosen = draws.conformers(int(uid[-1]) + 1, len(view.molecule_position))
    position = view.molecule_position[chosen[uid], reference]
    position = np.where(mask[:, None], position, 0).astype(np.float64)
    turn, shift = draws.normal_moves(np.bincount(uid, mask) > 0)
    turned = np.einsum("aij,aj->ai", turn[uid], centred(position, uid, mask))
    element = view.atom_element[atom].astype(np.int64)
    return {
        "atom_to_token_index": crop.owner.astype(np.int32),
        "atom_mask": np.ones(len(atom), np.float32),
        "ref_pos": ((turned + shift[uid]) * mask[:, None]).astype(np.float32),
        "ref_mask": mask.astype(np.int32),
        "ref_element": hot(
            np.where(element > 0, element, NUM_ELEMENTS) - 1, NUM_ELEMENTS, np.int32
        ),
        "ref_charge": view.atom_charge[atom].astype(np.float32),
        "ref_atom_name_chars": hot(view.atom_name[atom], _CHARACTERS, np.int32),
        "ref_space_uid": uid.astype(np.int32),
    }


def _rows(
    view: EntryView,
    alignments: Sequence[Alignment],
    crop: Crop,
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Laid:
    """Residue types and deletions of the rows at the tokens' columns, and profiles."""
    plan = plan_rows(view, crop.chain, alignments, draws, config)
    count, size = plan.num_rows, config.token_budget
    every = np.full([count, size], GAP_TYPE, np.uint8)
    types = every[:, : len(crop)]
    if not config.unmasked_padding:
        types[0] = view.token_type[crop.token]
    depth = np.ones(len(crop), np.int32)
    for one in plan.shown:
        depth[crop.chain == one.chain] = one.depth
    profile = np.zeros([len(crop), NUM_RESTYPES], np.float32)
    columns = view.residue_index[crop.residue] - 1
    deletions, mean = fill_rows(types, crop.chain, columns, plan.shown, profile)
    values = np.arctan(deletions[:, 2].astype(np.float32) / 3) * np.float32(2 / math.pi)
    return {
        "_msa": every,
        "_depth": depth,
        "msa": Sparse((*every.shape, NUM_RESTYPES), np.int32),
        "msa_mask": Sparse(every.shape, np.float32),
        **deleted(deletions, values, (count, size)),
        "deletion_mean": longer(mean, size),
        "profile": longer(profile, size),
        "num_paired_seqs": np.array([plan.num_paired], np.int32),
    }


def loss_weights(resolution: float, config: OpenFold3Config) -> Laid:
    """Weights of `config.loss_weights`; none of confidence where the resolution is unusual."""
    low, high = config.resolutions
    usual = low <= resolution <= high
    return {
        f"loss_weights.{name}": np.array(
            [value if usual or name not in CONFIDENCE_LOSSES else 0.0], np.float32
        )
        for name, value in config.loss_weights
    }

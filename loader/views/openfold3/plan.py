"""The random decisions and host features of an OpenFold3 sample, laid out for the device.

Names and values are those of OpenFold3's featurizer. Tokens are padded to the config's number,
atoms and rows are not padded.
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
from evofeed.loader.views.laid import Laid, OnHost, Sparse, deletion_features, hot, pad, symmetric
from evofeed.loader.views.openfold3.crop import crop_entry
from evofeed.loader.views.openfold3.labels import Layout, exchange, lay_out
from evofeed.loader.views.openfold3.molecules import Molecules, molecules_of
from evofeed.loader.views.openfold3.rows import plan_rows
from evofeed.loader.views.openfold3.templates import lay_out_templates, plan_templates
from evofeed.protein.alignment import Alignment
from evofeed.protein.entry_record import run_starts
from evofeed.protein.ruleset_section import copies_of

NUM_ELEMENTS: Final = 119
"""Atomic numbers from 1; the last one stands for an unknown element."""
_CHARACTERS: Final = 64


def plan_sample(
    view: EntryView,
    alignments: Sequence[Alignment],
    datapoint: Sequence[int],
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Laid:
    """The crop, labels, conformers and MSA rows of one sample.

    Raises:
        ValueError: no token of the entry is resolved, so that no crop can be made.
    """
    entry_crop = crop_entry(view, tuple(datapoint), draws, config)
    molecules = molecules_of(view, entry_crop.chains)
    layout = lay_out(view, molecules)
    cropped = np.zeros(view.num_tokens, bool)
    cropped[entry_crop.tokens] = True
    in_crop = cropped[layout.token]
    indices = np.flatnonzero(in_crop)
    crop = Crop.of(view, layout.token[indices])
    atom, token, orders = exchange(
        view, layout, molecules, crop, in_crop, spatial=entry_crop.strategy.is_spatial
    )
    size = config.token_budget
    laid = _tokens(view, layout, molecules, indices, crop.atoms, size)
    chains = _chains(view, molecules, layout.token_chain[indices], config)
    chains["residue_index"] = view.residue_index[crop.residue]
    laid |= {name: pad(value, size, np.int32) for name, value in chains.items()}
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
    indices: Integer[np.ndarray, " T"],
    atoms: Integer[np.ndarray, " T"],
    size: int,
) -> Laid:
    """Token features of the crop and of the labels, padded to `size` tokens."""
    token = layout.token[indices]
    chain = layout.token_chain[indices]
    component = view.residue_component[view.token_residue[token]]
    component_number = np.zeros(len(view.component_molecule), np.int64)
    component_number[layout.component] = layout.component_in_molecule + 1
    chain_type = view.chain_type[molecules.chain[chain]]
    features = {
        "token_index": indices,
        "is_atomized": view.token_atomized[token],
        "mol_entity_id": molecules.entity[chain],
        "mol_sym_id": molecules.sym[chain],
        "mol_sym_token_index": layout.token_in_molecule[indices],
        "mol_sym_component_id": component_number[component],
        "num_atoms_per_token": atoms,
        "start_atom_index": np.cumsum(atoms) - atoms,
        **{name: chain_type == code for name, code in IS_KIND.items()},
    }
    return {
        **{name: pad(value, size, np.int32) for name, value in features.items()},
        "restype": hot(view.token_type[token], NUM_RESTYPES, np.int32, size),
        "token_mask": pad(np.ones(len(token)), size, np.float32),
    }


def _chains(
    view: EntryView, molecules: Molecules, chain: Integer[np.ndarray, " T"], config: OpenFold3Config
) -> dict[str, np.ndarray]:
    """Numbers of the chains and entities of the crop, and of the copies of each entity, from 1."""
    indices, inverse = np.unique(chain, return_inverse=True)
    rows = molecules.chain[indices]
    asym = np.arange(1, len(rows) + 1)
    if config.text_order:
        asym[np.argsort(view.chain_name[rows], kind="stable")] = np.arange(1, len(rows) + 1)
    entity = view.chain_entity[rows]
    sym = copies_of(entity) + 1
    return {"asym_id": asym[inverse], "entity_id": entity[inverse], "sym_id": sym[inverse]}


def _bonds(view: EntryView, crop: Crop) -> Integer[np.ndarray, "b 2"]:
    """Pairs of bonded tokens of the crop that are both single atoms."""
    ends = crop.owner[crop.bonds(view)]
    bonded_tokens: np.ndarray = ends[view.token_atomized[crop.token][ends].all(1)]
    return bonded_tokens


def _labels(
    view: EntryView,
    layout: Layout,
    molecules: Molecules,
    atom: Integer[np.ndarray, " b"],
    token: Integer[np.ndarray, " b"],
) -> Laid:
    """Features of atoms with exchangeable labels, and of their tokens (indices in the layout)."""
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
    """Atoms of the crop's components, with rotated and translated conformers.

    Masked atoms are at zero. Source: AF3 SI, algorithm 19.
    """
    atom, uid = crop.atom, crop.run
    reference = view.atom_reference[atom]
    mask = view.molecule_mask[reference]
    chosen = draws.conformers(int(uid[-1]) + 1, len(view.molecule_position))
    position = view.molecule_position[chosen[uid], reference]
    position = np.where(mask[:, None], position, 0).astype(np.float64)
    rotation, shift = draws.normal_moves(np.bincount(uid, mask) > 0)
    rotated = np.einsum("aij,aj->ai", rotation[uid], centred(position, uid, mask))
    element = view.atom_element[atom].astype(np.int64)
    element[element == 0] = NUM_ELEMENTS
    return {
        "atom_to_token_index": crop.owner.astype(np.int32),
        "atom_mask": np.ones(len(atom), np.float32),
        "ref_pos": ((rotated + shift[uid]) * mask[:, None]).astype(np.float32),
        "ref_mask": mask.astype(np.int32),
        "ref_element": hot(element - 1, NUM_ELEMENTS, np.int32),
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
    """Residue types and deletions of the MSA rows at the tokens' columns, and profiles."""
    plan = plan_rows(view, crop.chain, alignments, draws, config)
    count, size = plan.num_rows, config.token_budget
    msa = np.full([count, size], GAP_TYPE, np.uint8)
    types = msa[:, : len(crop)]
    if not config.unmasked_padding:
        types[0] = view.token_type[crop.token]
    depth = np.ones(len(crop), np.int32)
    for rows in plan.chains:
        depth[crop.chain == rows.chain] = rows.depth
    profile = np.zeros([len(crop), NUM_RESTYPES], np.float32)
    columns = view.residue_index[crop.residue] - 1
    deletions, mean = fill_rows(types, crop.chain, columns, plan.chains, profile)
    values = np.arctan(deletions[:, 2].astype(np.float32) / 3) * np.float32(2 / math.pi)
    return {
        "_msa": msa,
        "_depth": depth,
        "msa": Sparse((*msa.shape, NUM_RESTYPES), np.int32),
        "msa_mask": Sparse(msa.shape, np.float32),
        **deletion_features(deletions, values, (count, size)),
        "deletion_mean": pad(mean, size),
        "profile": pad(profile, size),
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

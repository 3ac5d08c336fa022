"""The random decisions and host features of a Protenix sample, laid out for the device.

Names and values are those of Protenix's featurizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, Strategy
from evofeed.loader.views.cells import fill_rows
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES, UNKNOWN, name_codes, residue_codes
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.crop import Crop, Tokens, centred
from evofeed.loader.views.entry_view import IS_KIND, ChainType, ProtenixView
from evofeed.loader.views.laid import Laid, OnHost, Sparse, deletion_features, hot, symmetric
from evofeed.loader.views.protenix.crop import crop_tokens
from evofeed.loader.views.protenix.frames import token_frames
from evofeed.loader.views.protenix.labels import Molecules, atom_orders, exchangeable, molecules_of
from evofeed.loader.views.protenix.rows import plan_rows
from evofeed.loader.views.protenix.templates import plan_templates
from evofeed.loader.views.protenix.vocabulary import is_named, standard_atom_index
from evofeed.protein.alignment import Alignment
from evofeed.protein.molecules import ELEMENTS

NUM_ELEMENTS: Final = 128
_CHARACTERS: Final = 64
_KINDS: Final = {
    "prot": ChainType.PROTEIN,
    "lig": ChainType.LIGAND,
    "rna": ChainType.RNA,
    "dna": ChainType.DNA,
}
_COUNTED: Final = ("rna_pair", "prot_pair", "prot_unpair", "rna_unpair")
"""Kinds of MSA rows with a count in the features."""


def plan_sample(
    view: ProtenixView,
    alignments: Sequence[Alignment],
    datapoint: Sequence[int],
    draws: SampleDraws,
    config: ProtenixConfig,
) -> Laid:
    """The crop, MSA rows, conformers and labels of one sample.

    Raises:
        ValueError: no crop can be made around the datapoint.
    """
    molecules = molecules_of(view)
    tokens = Tokens.of(view, _token_order(view, molecules, draws, config))
    sym = _copy_numbers(view, draws, config)
    indices, strategy = crop_tokens(tokens, datapoint, draws, config)
    crop = Crop.of(view, tokens.row[indices])
    if strategy is Strategy.CONTIGUOUS:
        resolved = int(view.atom_present[crop.atom].sum())
        if resolved < config.min_resolved:
            raise ValueError(f"{view.entry}: {resolved} atoms of a contiguous crop are resolved")
    chains = _chains(view, tokens, crop)
    templates = plan_templates(view, alignments, chains, crop, draws, config)
    position, mask = _conformers(view, crop, draws, config)
    frames, has_frame = token_frames(view, crop, position, mask)
    inputs = {
        **_tokens(view, crop, sym),
        **_atoms(view, crop, molecules, config),
        **_bonds(view, crop),
        "ref_pos": position,
        "ref_mask": mask.astype(np.int64),
        "frame_atom_index": frames,
        "has_frame": has_frame.astype(np.int64),
        "resolution": np.nan_to_num(np.array([view.resolution], np.float32), nan=-1.0),
        "is_distillation": np.zeros(1, bool),
    }
    return {
        **{f"input_feature_dict.{name}": value for name, value in inputs.items()},
        **_rows(view, alignments, chains, crop, config),
        **templates,
        "label_dict.coordinate": view.atom_position[crop.atom].astype(np.float32),
        "label_dict.coordinate_mask": view.atom_present[crop.atom].astype(np.int64),
        **exchangeable(view, crop, tokens, molecules, spatial=strategy.is_spatial),
        **{name: OnHost(value) for name, value in atom_orders(view, crop).items()},
        **_counts(view, crop),
    }


def _token_order(
    view: ProtenixView, molecules: Molecules, draws: SampleDraws, config: ProtenixConfig
) -> Integer[np.ndarray, " N"] | None:
    if not config.shuffle_molecules:
        return None
    rank = np.argsort(draws.permutation(Purpose.MOLECULE_ORDER, int(molecules.molecule.max()) + 1))
    return np.argsort(rank[molecules.molecule[view.token_chain()]], kind="stable")


def _copy_numbers(
    view: ProtenixView, draws: SampleDraws, config: ProtenixConfig
) -> Integer[np.ndarray, " C"]:
    """Number of every chain among the copies of its entity, `sym_id`."""
    sym = view.chain_sym.astype(np.int64)
    if config.shuffle_copies:
        for entity in np.unique(view.chain_entity):
            in_entity = view.chain_entity == entity
            numbers = np.unique(sym[in_entity])
            shuffled = numbers[draws.permutation(Purpose.COPY_ORDER, len(numbers), per_call=True)]
            sym[in_entity] = shuffled[np.searchsorted(numbers, sym[in_entity])]
    return sym


def _tokens(view: ProtenixView, crop: Crop, sym: Integer[np.ndarray, " C"]) -> Laid:
    return {
        "token_index": np.arange(len(crop.token)),
        "residue_index": view.residue_index[crop.residue].astype(np.int64),
        "asym_id": view.chain_asym[crop.chain].astype(np.int64),
        "entity_id": view.chain_entity[crop.chain].astype(np.int64),
        "sym_id": sym[crop.chain].astype(np.int64),
        "restype": hot(view.residue_type[crop.residue], NUM_RESTYPES, np.float32),
    }


def _atoms(view: ProtenixView, crop: Crop, molecules: Molecules, config: ProtenixConfig) -> Laid:
    owner = crop.owner
    chain, residue = crop.chain[owner], crop.residue[owner]
    kind = view.residue_kind[residue]
    code = residue_codes(view.residue_name[crop.residue])[owner]
    names = view.atom_name[crop.atom].astype(np.uint8)
    standard = (code >= 0) & (kind != ChainType.LIGAND)
    centre, distogram = np.zeros((2, len(owner)), bool)
    centre[crop.centre] = True
    distogram[crop.distogram[view.token_distogram[crop.token] >= 0]] = True
    first_atom = view.residue_atom[view.chain_residue[chain]]
    shown_names = _renamed_atoms(view, crop, kind, names) if config.rename_ligand_atoms else names
    integers = {
        "ref_charge": view.atom_charge[crop.atom],
        "ref_space_uid": residue,
        "atom_to_tokatom_idx": np.where(standard, standard_atom_index(code, names), 0),
        "pae_rep_atom_mask": centre,
        "plddt_m_rep_atom_mask": standard & is_named(names, "CA", "C1'"),
        "distogram_rep_atom_mask": distogram,
        "modified_res_mask": (code < 0) & (kind != ChainType.LIGAND),
        "mol_id": molecules.molecule[chain],
        "mol_atom_index": molecules.first[chain] + crop.atom - first_atom,
        "entity_mol_id": molecules.kind[chain],
        "atom_to_token_idx": owner,
        **{name: view.chain_type[chain] == number for name, number in IS_KIND.items()},
    }
    element = view.atom_element[crop.atom].astype(np.int64)
    return {
        **{name: value.astype(np.int64) for name, value in integers.items()},
        "ref_element": hot(element - 1, NUM_ELEMENTS, np.int64),
        "ref_atom_name_chars": hot(np.minimum(shown_names, _CHARACTERS - 1), _CHARACTERS, np.int64),
    }


def _renamed_atoms(
    view: ProtenixView, crop: Crop, kind: np.ndarray, names: np.ndarray
) -> Integer[np.ndarray, "A 4"]:
    """Atom names, those of ligands replaced by element and number in the residue."""
    counts: dict[tuple[int, int], int] = {}
    rows = np.flatnonzero(kind == ChainType.LIGAND)
    texts = []
    elements = view.atom_element[crop.atom[rows]].tolist()
    for residue, element in zip(crop.run[rows].tolist(), elements, strict=True):
        number = counts[residue, element] = counts.get((residue, element), 0) + 1
        texts.append(f"{ELEMENTS[element - 1]}{number}")
    if texts:
        names = names.copy()
        names[rows] = name_codes(np.array(texts))
    return names


def _bonds(view: ProtenixView, crop: Crop) -> Laid:
    """Bonded tokens, without bonds along polymers, and bonded atoms of ligands and polymers."""
    ends = crop.bonds(view)
    residue = crop.residue[crop.owner]
    polymer = view.residue_kind[residue] != ChainType.LIGAND
    standard = (residue_codes(view.residue_name[crop.residue]) >= 0)[crop.owner] & polymer
    a, b = ends.T
    both_polymer = polymer[a] & polymer[b]
    along = both_polymer & (standard[a] | standard[b] | (residue[a] != residue[b]))
    # A chain of one atom is an ion; Protenix counts the atoms of all copies of a chain.
    label = np.array([name.split(".")[0] for name in view.chain_name[crop.chain].tolist()])
    _, inverse = np.unique(label[crop.owner], return_inverse=True)
    ligand = ~polymer & (np.bincount(inverse)[inverse] > 1)
    between = (ligand[a] & polymer[b]) | (ligand[b] & polymer[a])
    return {
        "token_bonds": symmetric(crop.owner[ends[~along]], len(crop.token), np.float32),
        "bond_mask": symmetric(ends[between], len(crop.atom), np.int64),
    }


def _conformers(
    view: ProtenixView, crop: Crop, draws: SampleDraws, config: ProtenixConfig
) -> tuple[Float[np.ndarray, "A 3"], Bool[np.ndarray, " A"]]:
    """Conformers of the residues, centred over their atoms in the crop, translated and rotated;
    and a mask of atoms that have a position."""
    reference = view.atom_reference[crop.atom]
    position = view.molecule_position[0][reference].astype(np.float64)
    position[reference < 0] = 0
    # Protenix draws the moves in the order of residue numbers, not of the crop.
    residues, number = np.unique(crop.residue[crop.owner], return_inverse=True)
    rotation, shift = draws.uniform_moves(len(residues), config.max_shift)
    translated = centred(position, crop.run) + shift[number]
    rotated = np.einsum("aij,aj->ai", rotation[number], translated).astype(np.float32)
    return rotated, view.molecule_mask[reference] & (reference >= 0)


def _rows(
    view: ProtenixView,
    alignments: Sequence[Alignment],
    chains: Sequence[int],
    crop: Crop,
    config: ProtenixConfig,
) -> Laid:
    """Codes and deletions of the MSA rows at the tokens' columns, profiles and numbers of rows."""
    plan = plan_rows(view, chains, alignments, config)
    size = len(crop)
    msa = np.full([plan.num_rows, size], UNKNOWN, np.uint8)
    if not config.fill_with_query:
        msa[1:] = GAP_TYPE
    profile = np.zeros([size, NUM_RESTYPES], np.float32)
    profile[:, UNKNOWN] = 1
    columns = view.residue_index[crop.residue] - 1
    deepest: dict[int, int] = {ChainType.PROTEIN: 1, ChainType.RNA: 1}
    for rows in plan.chains:
        outside = (columns < 0) | (columns >= rows.alignment.num_columns)
        columns[outside & (crop.chain == rows.chain)] = 0
        kind = int(view.chain_polymer[rows.chain])
        deepest[kind] = max(deepest.get(kind, 1), rows.depth - plan.num_paired)
    deletions, mean = fill_rows(msa, crop.chain, columns, plan.chains, profile)
    number = deletions[:, 2].clip(max=127) if config.clip_127 else deletions[:, 2]
    inputs: Laid = {
        "msa": Sparse(msa.shape, np.int64),
        **deletion_features(deletions, np.arctan(number / 3.0) * (2.0 / math.pi), msa.shape),
        "profile": profile,
        "deletion_mean": mean,
    }
    laid: Laid = {f"input_feature_dict.{name}": value for name, value in inputs.items()}
    counts = (1, plan.num_paired, deepest[ChainType.PROTEIN], deepest[ChainType.RNA])
    for name, count in zip(_COUNTED, counts, strict=True):
        laid[f"input_feature_dict.{name}_num_alignments"] = OnHost(np.array(count))
        laid[f"basic.N_msa_{name}"] = OnHost(np.array([count]))
    return laid | {"_msa": msa, "basic.N_msa": OnHost(np.array([plan.num_rows]))}


def _chains(view: ProtenixView, tokens: Tokens, crop: Crop) -> list[int]:
    """Chains of the crop, entity by entity, in Protenix's order.

    Protenix keeps their numbers in sets; the order is that of a Python set of integers.
    """
    _, first = np.unique(tokens.chain, return_index=True)
    numbers: dict[int, set[int]] = {}
    for chain in tokens.chain[np.sort(first)].tolist():
        numbers.setdefault(int(view.chain_entity[chain]), set()).add(int(view.chain_asym[chain]))
    row = {int(asym): chain for chain, asym in enumerate(view.chain_asym.tolist())}
    present = set(crop.chain.tolist())
    ordered = [row[asym] for asyms in numbers.values() for asym in asyms]
    return [chain for chain in ordered if chain in present]


def _counts(view: ProtenixView, crop: Crop) -> Laid:
    """Numbers of chains, atoms and tokens, and of atoms and tokens by kind of chain."""
    kind, atoms = view.chain_type[crop.chain], crop.atoms
    numbers = {"asym": len(np.unique(crop.chain)), "token": len(kind), "atom": len(crop.atom)}
    for name, chain_type in _KINDS.items():
        numbers[f"{name}_atom"] = int(atoms[kind == chain_type].sum())
        numbers[f"{name}_token"] = int((kind == chain_type).sum())
    return {f"basic.N_{name}": OnHost(np.array([number])) for name, number in numbers.items()}

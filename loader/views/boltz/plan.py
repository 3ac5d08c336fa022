"""A Boltz sample as the host decides it, its features laid out for the device.

Names and values are those of Boltz 1's featurizer, padded to the config's tokens, atoms and rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Int
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.boltz.crop import crop_tokens, pocket
from evofeed.loader.views.boltz.rows import GAP_CODE, plan_rows
from evofeed.loader.views.boltz.symmetries import symmetry_features
from evofeed.loader.views.cells import fill_rows
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.crop import Crop, centred
from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.loader.views.laid import Laid, OnHost, Sparse, hot, longer, symmetric
from evofeed.protein.alignment import Alignment

NUM_TOKENS: Final = 33
"""Residue types: padding, gap, 20 amino acids, unknown, 5 of RNA, 5 of DNA."""
NUM_ELEMENTS: Final = 128
_CHARACTERS: Final = 64
_POCKET: Final = 4
_OFFSETS: Final = np.array([[0, 1, 2], [11, 7, 5], [10, 7, 5]])
"""N CA C of amino acids; C1' C3' C4' of RNA and of DNA: places in Boltz's lists of atoms."""
_RNA, _DNA, _LAST = 23, 28, 32
_UNKNOWN: Final = 22
_COSINE: Final = 0.9063
"""Of 25 degrees: frames nearer to a line are none."""


def plan_sample(
    view: EntryView,
    alignments: Sequence[Alignment],
    datapoint: Sequence[int],
    draws: SampleDraws,
    config: BoltzConfig,
) -> Laid:
    """Crop, rows and decisions of one sample.

    Raises:
        ValueError: no crop can be made around the datapoint.
    """
    crop = Crop.of(view, crop_tokens(view, datapoint, draws, config))
    drawn = 1 + draws.even(Purpose.NUM_ROWS, config.max_seqs)
    laid = _tokens(view, crop, config)
    laid["pocket_feature"] = hot(
        pocket(view, crop, draws, config), _POCKET, np.int64, config.max_tokens
    )
    laid |= _atoms(view, crop, draws, config)
    if config.symmetries:
        laid |= symmetry_features(view, crop, draws, config)
    return laid | _rows(view, alignments, crop, drawn, config)


def _tokens(view: EntryView, crop: Crop, config: BoltzConfig) -> Laid:
    size, atoms = config.max_tokens, config.max_atoms
    apart = view.token_distogram[crop.token]
    resolved = view.token_resolved[crop.token]
    polymer = view.chain_type[crop.chain] != ChainType.LIGAND
    frames, has_frame = _frames(view, crop)
    numbers = {
        "token_index": np.arange(len(crop)),
        "residue_index": view.residue_index[crop.residue],
        "asym_id": crop.chain,
        "entity_id": view.chain_entity[crop.chain],
        "sym_id": view.chain_sym[crop.chain],
        "mol_type": view.chain_type[crop.chain],
        "frames_idx": frames,
    }
    masks = {
        "token_pad_mask": np.ones(len(crop)),
        "token_resolved_mask": resolved,
        "token_disto_mask": view.residue_present[crop.residue] & view.atom_present[apart],
    }
    shown = crop.centre[polymer & resolved]
    bonds = symmetric(crop.owner[crop.bonds(view)], size, np.float32)
    return {
        **{name: longer(value, size, np.int64) for name, value in numbers.items()},
        **{name: longer(value, size, np.float32) for name, value in masks.items()},
        "frame_resolved_mask": longer(has_frame, size),
        "res_type": hot(view.token_type[crop.token], NUM_TOKENS, np.int64, size),
        "disto_center": longer(view.atom_position[apart], size, np.float32),
        "disto_target": Sparse((size, size, config.num_bins), np.int64),
        "token_bonds": bonds._replace(shape=(size, size, 1)),
        "token_to_rep_atom": hot(crop.distogram, atoms, np.int64, size),
        "r_set_to_rep_atom": hot(shown, atoms, np.int64, len(shown) + size - len(crop)),
        "cyclic_period": np.zeros(size, np.int32),
    }


def _atoms(view: EntryView, crop: Crop, draws: SampleDraws, config: BoltzConfig) -> Laid:
    size, whole, atoms = config.max_atoms, np.int64, crop.atom
    reference = view.atom_reference[atoms]
    conformer = view.molecule_position[0][reference]
    conformer = np.where(reference[:, None] >= 0, conformer, 0).astype(np.float32)
    present, coords = view.atom_present[atoms], view.atom_position[atoms].astype(np.float32)
    center = (coords * present[:, None]).sum(0, np.float64) / max(1, present.sum())
    return {
        "ref_pos": longer(_moved(conformer, crop.run, draws, config), size, np.float32),
        "atom_resolved_mask": longer(present, size),
        "ref_element": hot(view.atom_element[atoms], NUM_ELEMENTS, whole, size),
        "ref_charge": longer(view.atom_charge[atoms], size, np.int8),
        "ref_atom_name_chars": hot(view.atom_name[atoms] % _CHARACTERS, _CHARACTERS, whole, size),
        "ref_space_uid": longer(crop.run, size, whole),
        "coords": longer(coords - center.astype(np.float32), size)[None],
        "atom_pad_mask": longer(np.ones(len(atoms)), size, np.float32),
        "atom_to_token": hot(crop.owner, config.max_tokens, whole, size),
    }


def _moved(
    conformer: Float[np.ndarray, "A 3"],
    uid: Int[np.ndarray, " A"],
    draws: SampleDraws,
    config: BoltzConfig,
) -> Float[np.ndarray, "A 3"]:
    """Conformers turned and moved: all as one, or each about its centre."""
    count = 1 if config.one_move else int(uid[-1]) + 1
    every = np.ones(count, bool)
    rotation, shift = draws.normal_moves(every, Purpose.ROTATION, Purpose.TRANSLATION)
    if config.one_move:
        together: np.ndarray = conformer @ rotation[0] + shift[0]
        return together
    turned = np.einsum("ad,ads->as", centred(conformer, uid), rotation[uid])
    moved: np.ndarray = turned + shift[uid]
    return moved


def _rows(
    view: EntryView,
    alignments: Sequence[Alignment],
    crop: Crop,
    drawn: int,
    config: BoltzConfig,
) -> Laid:
    """Codes, pairing and deletions of the drawn rows, at the tokens' columns."""
    chains, number = np.unique(crop.chain, return_inverse=True)
    mine = [alignments[number] if number >= 0 else None for number in view.chain_alignment[chains]]
    plan, paired = plan_rows(chains, mine, drawn if config.profile_of_kept else None, config)
    codes = np.full([plan.num_rows, len(crop)], GAP_CODE, np.uint8)
    codes[0] = view.residue_type[crop.residue]  # of a chain without an alignment
    deletions, _ = fill_rows(codes, crop.chain, view.residue_index[crop.residue], plan.shown)
    row, token, count = deletions.T.astype(np.int64)
    shape: Any = config.max_seqs, config.max_tokens
    drawn = min(drawn, len(codes))
    factor = math.pi / 2 if config.pi_half else 2 / math.pi
    values = np.float32(factor) * np.arctan(count.astype(np.float32) / 3)
    mean = np.bincount(token, values, shape[1]) / len(codes)
    kept = row < drawn
    return {
        "_codes": codes,
        "_num_rows": OnHost(np.array(len(codes) if config.profile_of_kept else drawn)),
        "_is_paired": paired,
        "_token_chain": number,
        "msa": Sparse((*shape, NUM_TOKENS), np.int64),
        "msa_paired": Sparse(shape, np.float32),
        "deletion_value": Sparse(shape, np.float32, (row * shape[1] + token)[kept], values[kept]),
        "has_deletion": Sparse(shape, bool),
        "deletion_mean": mean.astype(np.float32),
        "profile": Sparse((shape[1], NUM_TOKENS), np.float32),
        "msa_mask": Sparse(shape, np.int64),
    }


def _frames(view: EntryView, crop: Crop) -> tuple[Int[np.ndarray, "N 3"], Bool[np.ndarray, " N"]]:
    """Atoms of the crop, and whether they make a frame.

    Ligands' atoms have their two nearest resolved ones of the chain's crop, by the labels.
    """
    kind, code = view.chain_type[crop.chain], view.token_type[crop.token]
    coords = view.atom_position[crop.atom].astype(np.float32)
    present = view.atom_present[crop.atom]
    start = crop.start[:-1]
    nucleic = (kind == ChainType.DNA) | (kind == ChainType.RNA)
    residue = (kind == ChainType.PROTEIN) & (code > 1) & (code < _UNKNOWN)
    residue |= nucleic & (code >= _RNA) & (code <= _LAST)
    residue &= crop.atoms >= 3
    which = np.where(code >= _DNA, 2, np.where(code >= _RNA, 1, 0))
    atoms = np.where(residue[:, None], _OFFSETS[which], 0) + start[:, None]
    valid = residue & present[np.minimum(atoms, len(present) - 1)].all(1)
    for number in np.unique(crop.chain[kind == ChainType.LIGAND]):
        rows = np.flatnonzero(crop.chain == number)
        mine = slice(start[rows[0]], crop.start[rows[-1] + 1])
        if mine.stop - mine.start < 3:
            continue
        first = _three_nearest(coords[mine], present[mine])
        atoms[rows] = first[:, [1, 0, 2]] + mine.start
        valid[rows] = present[atoms[rows]].all(1)
    points = coords[atoms]
    valid &= _apart(points[:, 1] - points[:, 0], points[:, 1] - points[:, 2])
    return atoms, valid


def _three_nearest(coords: np.ndarray, present: np.ndarray) -> np.ndarray:
    step = coords[:, None] - coords[None]
    step *= step
    distance = np.sqrt(step[..., 0] + step[..., 1] + step[..., 2])
    distance[~(present[:, None] & present[None])] = np.inf
    order: np.ndarray = np.argsort(distance, axis=1, kind="stable")
    return order[:, :3]


def _apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether two vectors are no line and of some length."""
    lengths = [np.linalg.norm(vector, axis=1, keepdims=True) for vector in (first, second)]
    ones = [v / (n + 1e-6) for v, n in zip((first, second), lengths, strict=True)]
    bent: np.ndarray = np.abs((ones[0] * ones[1]).sum(1)) < _COSINE
    bent &= (lengths[0][:, 0] > 1e-2) & (lengths[1][:, 0] > 1e-2)
    return bent

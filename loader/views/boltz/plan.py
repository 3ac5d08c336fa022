"""The random decisions and host features of a Boltz sample, laid out for the device.

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
from evofeed.loader.views.laid import Laid, OnHost, Sparse, hot, pad, symmetric
from evofeed.protein.alignment import Alignment

NUM_TOKENS: Final = 33
"""Residue types: padding, gap, 20 amino acids, unknown, 5 of RNA, 5 of DNA."""
NUM_ELEMENTS: Final = 128
_CHARACTERS: Final = 64
_POCKET: Final = 4
_OFFSETS: Final = np.array([[0, 1, 2], [11, 7, 5], [10, 7, 5]])
"""Indices in Boltz's atom lists: N CA C of amino acids; C1' C3' C4' of RNA and of DNA."""
_RNA, _DNA, _LAST = 23, 28, 32
_UNKNOWN: Final = 22
_COSINE: Final = 0.9063
"""Cosine of 25 degrees; three atoms nearer to a line are not a frame."""


def plan_sample(
    view: EntryView,
    alignments: Sequence[Alignment],
    datapoint: Sequence[int],
    draws: SampleDraws,
    config: BoltzConfig,
) -> Laid:
    """The crop, MSA rows and features of one sample.

    Raises:
        ValueError: no crop can be made around the datapoint.
    """
    crop = Crop.of(view, crop_tokens(view, datapoint, draws, config))
    drawn = 1 + draws.integer(Purpose.NUM_ROWS, config.max_seqs)
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
    distogram = view.token_distogram[crop.token]
    resolved = view.token_resolved[crop.token]
    polymer = view.chain_type[crop.chain] != ChainType.LIGAND
    frames, has_frame = _frames(view, crop)
    integers = {
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
        "token_disto_mask": view.residue_present[crop.residue] & view.atom_present[distogram],
    }
    centres = crop.centre[polymer & resolved]
    bonds = symmetric(crop.owner[crop.bonds(view)], size, np.float32)
    return {
        **{name: pad(value, size, np.int64) for name, value in integers.items()},
        **{name: pad(value, size, np.float32) for name, value in masks.items()},
        "frame_resolved_mask": pad(has_frame, size),
        "res_type": hot(view.token_type[crop.token], NUM_TOKENS, np.int64, size),
        "disto_center": pad(view.atom_position[distogram], size, np.float32),
        "disto_target": Sparse((size, size, config.num_bins), np.int64),
        "token_bonds": bonds._replace(shape=(size, size, 1)),
        "token_to_rep_atom": hot(crop.distogram, atoms, np.int64, size),
        "r_set_to_rep_atom": hot(centres, atoms, np.int64, len(centres) + size - len(crop)),
        "cyclic_period": np.zeros(size, np.int32),
    }


def _atoms(view: EntryView, crop: Crop, draws: SampleDraws, config: BoltzConfig) -> Laid:
    size, atoms = config.max_atoms, crop.atom
    reference = view.atom_reference[atoms]
    conformer = view.molecule_position[0][reference]
    conformer = np.where(reference[:, None] >= 0, conformer, 0).astype(np.float32)
    present, coords = view.atom_present[atoms], view.atom_position[atoms].astype(np.float32)
    center = (coords * present[:, None]).sum(0, np.float64) / max(1, present.sum())
    characters = view.atom_name[atoms] % _CHARACTERS
    return {
        "ref_pos": pad(_augmented(conformer, crop.run, draws, config), size, np.float32),
        "atom_resolved_mask": pad(present, size),
        "ref_element": hot(view.atom_element[atoms], NUM_ELEMENTS, np.int64, size),
        "ref_charge": pad(view.atom_charge[atoms], size, np.int8),
        "ref_atom_name_chars": hot(characters, _CHARACTERS, np.int64, size),
        "ref_space_uid": pad(crop.run, size, np.int64),
        "coords": pad(coords - center.astype(np.float32), size)[None],
        "atom_pad_mask": pad(np.ones(len(atoms)), size, np.float32),
        "atom_to_token": hot(crop.owner, config.max_tokens, np.int64, size),
    }


def _augmented(
    conformer: Float[np.ndarray, "A 3"],
    uid: Int[np.ndarray, " A"],
    draws: SampleDraws,
    config: BoltzConfig,
) -> Float[np.ndarray, "A 3"]:
    """Conformers rotated and translated: all together, or each about its centre."""
    count = 1 if config.one_move else int(uid[-1]) + 1
    moves = np.ones(count, bool)
    rotation, shift = draws.normal_moves(moves, Purpose.ROTATION, Purpose.TRANSLATION)
    if config.one_move:
        augmented: np.ndarray = conformer @ rotation[0] + shift[0]
    else:
        augmented = np.einsum("ad,ads->as", centred(conformer, uid), rotation[uid]) + shift[uid]
    return augmented


def _rows(
    view: EntryView, alignments: Sequence[Alignment], crop: Crop, num_rows: int, config: BoltzConfig
) -> Laid:
    """Codes, pairing and deletions of the drawn MSA rows at the tokens' columns."""
    chains, token_chain = np.unique(crop.chain, return_inverse=True)
    aligned = [alignments[row] if row >= 0 else None for row in view.chain_alignment[chains]]
    limit = num_rows if config.profile_of_kept else None
    plan, is_paired = plan_rows(chains, aligned, limit, config)
    codes = np.full([plan.num_rows, len(crop)], GAP_CODE, np.uint8)
    codes[0] = view.residue_type[crop.residue]  # for chains without an alignment
    deletions, _ = fill_rows(codes, crop.chain, view.residue_index[crop.residue], plan.chains)
    row, token, deleted = deletions.T.astype(np.int64)
    shape: Any = config.max_seqs, config.max_tokens
    num_rows = min(num_rows, len(codes))
    factor = math.pi / 2 if config.pi_half else 2 / math.pi
    values = np.float32(factor) * np.arctan(deleted.astype(np.float32) / 3)
    mean = np.bincount(token, values, shape[1]) / len(codes)
    index, in_msa = row * shape[1] + token, row < num_rows
    return {
        "_codes": codes,
        "_num_rows": OnHost(np.array(len(codes) if config.profile_of_kept else num_rows)),
        "_is_paired": is_paired,
        "_token_chain": token_chain,
        "msa": Sparse((*shape, NUM_TOKENS), np.int64),
        "msa_paired": Sparse(shape, np.float32),
        "deletion_value": Sparse(shape, np.float32, index[in_msa], values[in_msa]),
        "has_deletion": Sparse(shape, bool),
        "deletion_mean": mean.astype(np.float32),
        "profile": Sparse((shape[1], NUM_TOKENS), np.float32),
        "msa_mask": Sparse(shape, np.int64),
    }


def _frames(view: EntryView, crop: Crop) -> tuple[Int[np.ndarray, "N 3"], Bool[np.ndarray, " N"]]:
    """Frame atoms of every token, in the crop, and whether the frame is valid.

    A ligand atom's frame has its two nearest resolved atoms of the same chain in the crop, by the
    labels.
    """
    kind, code = view.chain_type[crop.chain], view.token_type[crop.token]
    coords = view.atom_position[crop.atom].astype(np.float32)
    present = view.atom_present[crop.atom]
    starts = crop.start[:-1]
    nucleic = (kind == ChainType.DNA) | (kind == ChainType.RNA)
    residue = (kind == ChainType.PROTEIN) & (code > 1) & (code < _UNKNOWN)
    residue |= nucleic & (code >= _RNA) & (code <= _LAST)
    residue &= crop.atoms >= 3
    offsets = np.where(code >= _DNA, 2, np.where(code >= _RNA, 1, 0))
    atoms = np.where(residue[:, None], _OFFSETS[offsets], 0) + starts[:, None]
    valid = residue & present[np.minimum(atoms, len(present) - 1)].all(1)
    for number in np.unique(crop.chain[kind == ChainType.LIGAND]):
        rows = np.flatnonzero(crop.chain == number)
        span = slice(starts[rows[0]], crop.start[rows[-1] + 1])
        if span.stop - span.start < 3:
            continue
        nearest = _three_nearest(coords[span], present[span])
        atoms[rows] = nearest[:, [1, 0, 2]] + span.start
        valid[rows] = present[atoms[rows]].all(1)
    points = coords[atoms]
    valid &= _not_parallel(points[:, 1] - points[:, 0], points[:, 1] - points[:, 2])
    return atoms, valid


def _three_nearest(coords: np.ndarray, present: np.ndarray) -> np.ndarray:
    step = coords[:, None] - coords[None]
    step *= step
    distance = np.sqrt(step[..., 0] + step[..., 1] + step[..., 2])
    distance[~(present[:, None] & present[None])] = np.inf
    order: np.ndarray = np.argsort(distance, axis=1, kind="stable")
    return order[:, :3]


def _not_parallel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """True for pairs of vectors that are not parallel and not of length 0."""
    lengths = [np.linalg.norm(vector, axis=1, keepdims=True) for vector in (first, second)]
    units = first / (lengths[0] + 1e-6), second / (lengths[1] + 1e-6)
    angled: np.ndarray = np.abs((units[0] * units[1]).sum(1)) < _COSINE
    angled &= (lengths[0][:, 0] > 1e-2) & (lengths[1][:, 0] > 1e-2)
    return angled

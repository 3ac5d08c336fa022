"""A Boltz sample as the host decides it: a few small arrays that the device makes features of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Int
from evofeed.loader.views.boltz.crop import crop_tokens, pocket
from evofeed.loader.views.boltz.rows import CODES, GAP_CODE, chain_rows, plan_rows
from evofeed.loader.views.boltz.symmetries import symmetry_features
from evofeed.loader.views.cells import row_codes, row_deletions
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.draws import BoltzDraws, rotations
from evofeed.loader.views.entry_view import ChainType, EntryView, joined_runs
from evofeed.protein.alignment import Alignment

ON_HOST: Final = frozenset({"symmetries", "num_rows"})
"""Arrays of a plan that the host reads."""
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
    draws: BoltzDraws,
    config: BoltzConfig,
) -> dict[str, np.ndarray]:
    """Crop, rows and decisions of one sample.

    Raises:
        ValueError: no crop can be made around the datapoint.
    """
    crop = crop_tokens(view, datapoint, draws, config)
    drawn = draws.rows(config.max_seqs)
    packed = _tokens(view, crop)
    packed["pocket"] = pocket(view, crop, draws, config)
    packed |= _atoms(view, crop)
    packed["frames"], packed["frame_mask"] = _frames(view, crop, packed)
    packed |= _moves(packed, draws, config)
    if config.symmetries:
        packed |= symmetry_features(view, crop, draws, config)
    return packed | _rows(view, alignments, crop, drawn, config)


def _tokens(view: EntryView, crop: Int[np.ndarray, " N"]) -> dict[str, np.ndarray]:
    residue = view.token_residue[crop]
    chain = view.residue_chain()[residue]
    apart = view.token_distogram[crop]
    offset = np.cumsum(view.token_atoms[crop]) - view.token_atoms[crop]
    own = offset - view.token_atom[crop]
    resolved = view.token_resolved[crop]
    polymer = view.chain_type[chain] != ChainType.LIGAND
    number = np.full(view.num_tokens, -1)
    number[crop] = np.arange(len(crop))
    of_atom = np.full(view.num_atoms, -1)
    of_atom[joined_runs(view.token_atom, view.token_atoms)] = np.repeat(number, view.token_atoms)
    return {
        "residue_index": view.residue_index[residue].astype(np.int32),
        "asym_id": chain.astype(np.int32),
        "entity_id": view.chain_entity[chain].astype(np.int32),
        "sym_id": view.chain_sym[chain].astype(np.int32),
        "mol_type": view.chain_type[chain].astype(np.int32),
        "res_type": view.token_type[crop].astype(np.int32),
        "disto_center": view.atom_position[apart].astype(np.float32),
        "resolved": resolved,
        "disto_resolved": view.residue_present[residue] & view.atom_present[apart],
        "bonds": view.bonded(of_atom).astype(np.int32),
        "atom_num": view.token_atoms[crop].astype(np.int32),
        "rep_atom": (own + apart).astype(np.int32),
        "r_set": (own + view.token_centre[crop])[polymer & resolved].astype(np.int32),
    }


def _atoms(view: EntryView, crop: Int[np.ndarray, " N"]) -> dict[str, np.ndarray]:
    atoms = view.atoms_of(crop)
    residue = view.token_residue[crop]
    uid = np.cumsum(np.diff(residue, prepend=residue[:1]) != 0)
    reference = view.atom_reference[atoms]
    conformer = view.molecule_position[0][reference]
    return {
        "atom_name": view.atom_name[atoms].astype(np.uint8),
        "element": view.atom_element[atoms].astype(np.uint8),
        "charge": view.atom_charge[atoms].astype(np.int8),
        "conformer": np.where(reference[:, None] >= 0, conformer, 0).astype(np.float32),
        "coords": view.atom_position[atoms].astype(np.float32),
        "present": view.atom_present[atoms],
        "space_uid": np.repeat(uid, view.token_atoms[crop]).astype(np.int32),
        "atom_token": np.repeat(np.arange(len(crop)), view.token_atoms[crop]).astype(np.int32),
    }


def _moves(
    packed: dict[str, np.ndarray], draws: BoltzDraws, config: BoltzConfig
) -> dict[str, np.ndarray]:
    count = 1 if config.one_move else int(packed["space_uid"][-1]) + 1
    return {
        "rotation": rotations(draws.quaternions(count)),
        "translation": draws.translations(count),
    }


def _rows(
    view: EntryView,
    alignments: Sequence[Alignment],
    crop: Int[np.ndarray, " N"],
    drawn: int,
    config: BoltzConfig,
) -> dict[str, np.ndarray]:
    """Codes, pairing and deletions of the drawn rows, at the tokens' columns."""
    residue = view.token_residue[crop]
    chain = view.residue_chain()[residue]
    chains, starts = np.unique(chain, return_index=True)
    stops = np.append(starts[1:], len(crop))
    mine = [alignments[number] if number >= 0 else None for number in view.chain_alignment[chains]]
    rows = chain_rows(mine, config.max_rows)
    plan = plan_rows(rows, drawn if config.profile_of_kept else None, config)
    codes = np.full([len(plan.rows), len(crop)], GAP_CODE, np.uint8)
    deletions = [np.zeros([0, 3], np.int32)]
    for number, alignment in enumerate(mine):
        run = slice(starts[number], stops[number])
        if alignment is None:
            codes[plan.rows[:, number] == 0, run] = view.residue_type[residue[run]]
            continue
        place, columns = plan.rows[:, number], view.residue_index[residue[run]]
        which = np.where(place >= 0, rows[number].rows[place], -1)
        codes[:, run] = row_codes(alignment, which, columns, CODES)
        if config.narrowed_deletions:
            which = np.where(place == 0, which, -1)
        tokens = np.arange(starts[number], stops[number])
        deletions.append(row_deletions(alignment, which, columns, tokens))
    token_chain = np.repeat(np.arange(len(chains)), stops - starts)
    return {
        "codes": codes,
        "is_paired": plan.is_paired,
        "token_chain": token_chain.astype(np.int32),
        "deletions": np.concatenate(deletions),
        "num_rows": np.array(min(drawn, len(codes)), np.int32),
    }


def _frames(
    view: EntryView, crop: Int[np.ndarray, " N"], packed: Mapping[str, np.ndarray]
) -> tuple[Int[np.ndarray, "N 3"], Bool[np.ndarray, " N"]]:
    """Atoms of the crop, and whether they make a frame.

    Ligands' atoms have their two nearest resolved ones of the chain's crop, by the labels.
    """
    kind, code = packed["mol_type"], packed["res_type"]
    counts, coords, present = packed["atom_num"], packed["coords"], packed["present"]
    start = np.cumsum(counts) - counts
    nucleic = (kind == ChainType.DNA) | (kind == ChainType.RNA)
    residue = (kind == ChainType.PROTEIN) & (code > 1) & (code < _UNKNOWN)
    residue |= nucleic & (code >= _RNA) & (code <= _LAST)
    residue &= counts >= 3
    which = np.where(code >= _DNA, 2, np.where(code >= _RNA, 1, 0))
    atoms = np.where(residue[:, None], _OFFSETS[which], 0) + start[:, None]
    valid = residue & present[np.minimum(atoms, len(present) - 1)].all(1)
    chain = packed["asym_id"]
    for number in np.unique(chain[kind == ChainType.LIGAND]):
        rows = np.flatnonzero(chain == number)
        mine = slice(start[rows[0]], start[rows[-1]] + counts[rows[-1]])
        if mine.stop - mine.start < 3:
            continue
        first = _three_nearest(coords[mine], present[mine])
        atoms[rows] = first[:, [1, 0, 2]] + mine.start
        valid[rows] = present[atoms[rows]].all(1)
    points = coords[atoms]
    valid &= _apart(points[:, 1] - points[:, 0], points[:, 1] - points[:, 2])
    return atoms.astype(np.int32), valid


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

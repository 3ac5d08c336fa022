"""The atoms of a crop, the orders they may stand in, and atoms whose labels may be theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.entry_view import ProtenixView
from evofeed.loader.views.protenix.crop import Tokens
from evofeed.loader.views.protenix.frames import uid_starts
from evofeed.loader.views.protenix.molecules import Molecules


@dataclass(frozen=True, slots=True)
class Crop:
    """Tokens and atoms of a sample: T tokens, A atoms; rows are the entry's, places the crop's."""

    token: Integer[np.ndarray, " T"]
    residue: Integer[np.ndarray, " T"]
    chain: Integer[np.ndarray, " T"]
    start: Integer[np.ndarray, " T1"]
    """Offsets of the tokens' atoms."""
    centre: Integer[np.ndarray, " T"]
    """Place of every token's centre atom."""
    atom: Integer[np.ndarray, " A"]
    owner: Integer[np.ndarray, " A"]
    """Token of every atom."""
    run: Integer[np.ndarray, " A"]
    """Number of every atom's residue, as residues stand in the crop."""

    @classmethod
    def of(cls, view: ProtenixView, token: Integer[np.ndarray, " T"]) -> Crop:
        """The crop that has these tokens."""
        residue = view.token_residue[token].astype(np.int64)
        counts = view.token_atoms[token].astype(np.int64)
        start = np.append(0, np.cumsum(counts))
        owner = np.repeat(np.arange(len(token)), counts)
        fresh = np.append(False, residue[1:] != residue[:-1])
        return cls(
            token,
            residue,
            view.residue_chain()[residue],
            start,
            start[:-1] + view.token_centre[token] - view.token_atom[token],
            view.atoms_of(token),
            owner,
            np.cumsum(fresh)[owner],
        )


def atom_orders(view: ProtenixView, crop: Crop) -> dict[str, np.ndarray]:
    """Of every atom of the crop the places it may take in its residue, residue by residue.

    Orders that move an atom bonded to another residue of the crop are left out.
    """
    starts = uid_starts(crop.run)
    stops = np.append(starts[1:], len(crop.run))
    bounds = np.append(starts, len(crop.run)).tolist()
    residue = crop.residue[crop.owner[starts]]
    place = crop.atom - view.residue_atom[crop.residue[crop.owner]]
    fixed = _linked(view, crop)
    molecule = view.component_molecule[view.residue_component[residue]]
    several = np.array([len(one) > 1 for one in view.molecule_orders])[molecule]
    counts = np.ones(len(starts), np.int64)
    parts, done = [place[:0]], 0
    seen: dict[tuple[int, bytes, bytes], np.ndarray] = {}
    for number in np.flatnonzero(several).tolist():
        low, high = view.residue_atom[residue[number] : residue[number] + 2]
        reference = view.atom_reference[low:high]
        mine = slice(bounds[number], bounds[number + 1])
        held = fixed[mine]
        key = int(molecule[number]), reference.tobytes() + place[mine].tobytes(), held.tobytes()
        if key not in seen:
            orders = _residue_orders(view, key[0], reference)[:, place[mine]]
            seen[key] = orders[(orders[:, held] == orders[:1, held]).all(1)]
        counts[number] = len(seen[key])
        parts += [place[done : mine.start], seen[key].T.ravel()]
        done = mine.stop
    parts.append(place[done:])
    return {
        "order_counts": counts.astype(np.int32),
        "order_sizes": (stops - starts).astype(np.int32),
        "orders": np.concatenate(parts).astype(np.int16),
    }


def _linked(view: ProtenixView, crop: Crop) -> np.ndarray:
    place = np.full(view.num_atoms, -1, np.int64)
    place[crop.atom] = crop.run
    ends = place[view.bond_atom]
    apart = (ends >= 0).all(1) & (ends[:, 0] != ends[:, 1])
    linked = np.zeros(view.num_atoms, bool)
    linked[view.bond_atom[apart]] = True
    mask: np.ndarray = linked[crop.atom]
    return mask


def _residue_orders(
    view: ProtenixView, molecule: int, reference: Integer[np.ndarray, " a"]
) -> Integer[np.ndarray, "P a"]:
    """Orders of a residue's atoms: those of its molecule that need no atom it lacks."""
    first, stop = view.molecule_atom[molecule], view.molecule_atom[molecule + 1]
    rank = np.full(stop - first, -1, np.int64)
    rank[reference - first] = np.arange(len(reference))
    orders = rank[view.molecule_orders[molecule][:, reference - first]]
    kept: np.ndarray = orders[(orders >= 0).all(1)]
    return kept


def exchangeable(
    view: ProtenixView, crop: Crop, tokens: Tokens, molecules: Molecules, *, spatial: bool
) -> dict[str, np.ndarray]:
    """Atoms of the entry that are the same atom of the same kind of molecule as one of the crop.

    Of a spatial crop only those of its molecules. Tokens stand in the order of the labels.
    """
    bounds = view.residue_atom[view.chain_residue].astype(np.int64)
    chain = np.repeat(np.arange(view.num_chains), np.diff(bounds))
    index = molecules.first[chain] + np.arange(view.num_atoms) - bounds[chain]
    key = molecules.kind[chain] * view.num_atoms + index
    wanted = np.isin(key, key[crop.atom])
    if spatial:
        mine = np.zeros(int(molecules.molecule.max()) + 1, bool)
        mine[molecules.molecule[crop.chain]] = True
        wanted &= mine[molecules.molecule[chain]]
    atom = view.atoms_of(tokens.row)
    atom = atom[wanted[atom]]
    centre = np.zeros(view.num_atoms, bool)
    centre[view.token_centre] = True
    return {
        "full_position": view.atom_position[atom].astype(np.float32),
        "full_present": view.atom_present[atom],
        "full_mol_id": molecules.molecule[chain[atom]].astype(np.int32),
        "full_mol_atom_index": index[atom].astype(np.int32),
        "full_entity_mol_id": molecules.kind[chain[atom]].astype(np.int32),
        "full_centre": centre[atom],
    }

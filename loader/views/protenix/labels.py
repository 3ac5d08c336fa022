"""Atom orders of a crop's residues, and atoms whose labels are exchangeable with the crop's.

Molecules are chains joined by bonds, as Protenix counts them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.crop import Crop, Tokens
from evofeed.loader.views.entry_view import (
    ChainType,
    EntryView,
    ProtenixView,
    connected_roots,
    counts_before,
)
from evofeed.loader.views.orders import crop_orders


@dataclass(frozen=True, slots=True)
class Molecules:
    """The molecule of each of C chains, and the molecule's kind."""

    molecule: Integer[np.ndarray, " C"]
    """From 0, in the order of the first name among a molecule's chains."""
    kind: Integer[np.ndarray, " C"]
    """Equal for molecules of the same entities whose atoms have the same names."""
    first: Integer[np.ndarray, " C"]
    """Number of the molecule's atoms before the chain."""


def molecules_of(view: ProtenixView) -> Molecules:
    """The molecules of a whole entry, without bonds of unresolved atoms and between polymers."""
    size = np.diff(view.residue_atom[view.chain_residue])
    chain = np.repeat(np.arange(view.num_chains), size)
    ends = chain[view.bond_atom]
    polymer = view.chain_polymer != ChainType.LIGAND
    joins = (ends[:, 0] != ends[:, 1]) & view.atom_present[view.bond_atom].all(1)
    joins &= ~polymer[ends].all(1)
    by_name = np.argsort(view.chain_name, kind="stable")
    root = connected_roots(by_name, ends[joins], view.num_chains)
    _, first, inverse = np.unique(root, return_index=True, return_inverse=True)
    molecule = np.empty(view.num_chains, np.int64)
    molecule[by_name] = np.argsort(np.argsort(first, kind="stable"), kind="stable")[inverse]
    kind = np.empty(len(first), np.int64)
    groups: dict[tuple[int, ...], dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    bounds = view.residue_atom[view.chain_residue]
    for number in range(len(first)):
        chains = np.flatnonzero(molecule == number)
        names = [view.atom_name[bounds[row] : bounds[row + 1]].tobytes() for row in chains]
        groups[tuple(sorted(view.chain_entity[chains].tolist()))][b"".join(names)].append(number)
    for count, members in enumerate(m for by_names in groups.values() for m in by_names.values()):
        kind[members] = count
    return Molecules(molecule, kind[molecule], counts_before(molecule, size))


def atom_orders(view: ProtenixView, crop: Crop) -> dict[str, np.ndarray]:
    """Atom orders of each residue of the crop, as indices in the residue.

    Those that move an atom bonded to another residue of the crop are left out.
    """
    counts, sizes, orders = crop_orders(view, crop, EntryView.orders_of, _linked(view, crop))
    return {"_order_counts": counts, "_order_sizes": sizes, "_orders": orders.astype(np.int16)}


def _linked(view: ProtenixView, crop: Crop) -> np.ndarray:
    """Mask of atoms that are bonded to another residue of the crop."""
    ends = crop.bonds(view)
    run = crop.run[ends]
    linked = np.zeros(len(crop.atom), bool)
    linked[ends[run[:, 0] != run[:, 1]]] = True
    return linked


def exchangeable(
    view: ProtenixView, crop: Crop, tokens: Tokens, molecules: Molecules, *, spatial: bool
) -> dict[str, np.ndarray]:
    """Labels of the entry's atoms that correspond to one of the crop in a molecule of equal kind.

    For a spatial crop only those of its molecules. `tokens` are in the order of the labels.
    """
    bounds = view.residue_atom[view.chain_residue].astype(np.int64)
    chain = np.repeat(np.arange(view.num_chains), np.diff(bounds))
    atom_index = molecules.first[chain] + np.arange(view.num_atoms) - bounds[chain]
    key = molecules.kind[chain] * view.num_atoms + atom_index
    is_exchangeable = np.isin(key, key[crop.atom])
    if spatial:
        in_crop = np.zeros(int(molecules.molecule.max()) + 1, bool)
        in_crop[molecules.molecule[crop.chain]] = True
        is_exchangeable &= in_crop[molecules.molecule[chain]]
    atom = view.atoms_of(tokens.row)
    atom = atom[is_exchangeable[atom]]
    centre = np.zeros(view.num_atoms, bool)
    centre[view.token_centre] = True
    numbers = {
        "coordinate_mask": view.atom_present[atom],
        "mol_id": molecules.molecule[chain[atom]],
        "mol_atom_index": atom_index[atom],
        "entity_mol_id": molecules.kind[chain[atom]],
        "pae_rep_atom_mask": centre[atom],
    }
    features = {name: value.astype(np.int64) for name, value in numbers.items()}
    features["coordinate"] = view.atom_position[atom].astype(np.float32)
    return {f"label_full_dict.{name}": value for name, value in features.items()}

"""The atoms of a crop, the orders they may stand in, and atoms whose labels may be theirs.

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
    counts_before,
    first_of_joined,
)
from evofeed.loader.views.orders import crop_orders


@dataclass(frozen=True, slots=True)
class Molecules:
    """Which molecule a chain belongs to, and which kind of molecule that is, C chains."""

    molecule: Integer[np.ndarray, " C"]
    """From 0, in the order of the first name among a molecule's chains."""
    kind: Integer[np.ndarray, " C"]
    """Equal for molecules of the same entities whose atoms have the same names."""
    first: Integer[np.ndarray, " C"]
    """Atoms of the molecule that stand before the chain."""


def molecules_of(view: ProtenixView) -> Molecules:
    """The molecules of a whole entry. Bonds of atoms that nobody saw, and those between polymers,
    join none."""
    size = np.diff(view.residue_atom[view.chain_residue])
    chain = np.repeat(np.arange(view.num_chains), size)
    ends = chain[view.bond_atom]
    polymer = view.chain_polymer != ChainType.LIGAND
    joins = (ends[:, 0] != ends[:, 1]) & view.atom_present[view.bond_atom].all(1)
    joins &= ~polymer[ends].all(1)
    by_name = np.argsort(view.chain_name, kind="stable")
    root = first_of_joined(by_name, ends[joins], view.num_chains)
    _, first, inverse = np.unique(root, return_index=True, return_inverse=True)
    molecule = np.empty(view.num_chains, np.int64)
    molecule[by_name] = np.argsort(np.argsort(first, kind="stable"), kind="stable")[inverse]
    kind = np.empty(len(first), np.int64)
    groups: dict[tuple[int, ...], dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    bounds = view.residue_atom[view.chain_residue]
    for number in range(len(first)):
        own = np.flatnonzero(molecule == number)
        names = [view.atom_name[bounds[one] : bounds[one + 1]].tobytes() for one in own]
        groups[tuple(sorted(view.chain_entity[own].tolist()))][b"".join(names)].append(number)
    for count, members in enumerate(one for named in groups.values() for one in named.values()):
        kind[members] = count
    return Molecules(molecule, kind[molecule], counts_before(molecule, size))


def atom_orders(view: ProtenixView, crop: Crop) -> dict[str, np.ndarray]:
    """Orders that the atoms of each residue of the crop may stand in, places in their residue.

    Those that move an atom bonded to another residue of the crop are left out.
    """
    counts, sizes, orders = crop_orders(view, crop, EntryView.orders_of, _linked(view, crop))
    return {"_order_counts": counts, "_order_sizes": sizes, "_orders": orders.astype(np.int16)}


def _linked(view: ProtenixView, crop: Crop) -> np.ndarray:
    """Which atoms are bonded to another residue of the crop."""
    ends = crop.bonds(view)
    run = crop.run[ends]
    linked = np.zeros(len(crop.atom), bool)
    linked[ends[run[:, 0] != run[:, 1]]] = True
    return linked


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
    numbers = {
        "coordinate_mask": view.atom_present[atom],
        "mol_id": molecules.molecule[chain[atom]],
        "mol_atom_index": index[atom],
        "entity_mol_id": molecules.kind[chain[atom]],
        "pae_rep_atom_mask": centre[atom],
    }
    features = {name: value.astype(np.int64) for name, value in numbers.items()}
    features["coordinate"] = view.atom_position[atom].astype(np.float32)
    return {f"label_full_dict.{name}": value for name, value in features.items()}

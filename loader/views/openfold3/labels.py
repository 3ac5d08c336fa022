"""Tokens of a crop in the order of their labels, and the atoms whose labels may change places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import EntryView, counts_before, joined_runs
from evofeed.loader.views.openfold3.molecules import Molecules
from evofeed.loader.views.orders import crop_orders


@dataclass(frozen=True, slots=True)
class Layout:
    """Tokens and components of the chains left by the chain crop, in the order of the labels.

    n tokens, g components; `token` and `component` are rows of the entry.
    """

    token: Integer[np.ndarray, " n"]
    token_chain: Integer[np.ndarray, " n"]
    """Place of the token's chain among the molecules' chains."""
    token_in_molecule: Integer[np.ndarray, " n"]
    """Number of the token in its molecule, from 0."""
    component: Integer[np.ndarray, " g"]
    component_chain: Integer[np.ndarray, " g"]
    component_in_molecule: Integer[np.ndarray, " g"]
    """Number of the component in its molecule, from 0."""


def lay_out(view: EntryView, molecules: Molecules) -> Layout:
    """The chains' tokens and components one after the other, numbered in their molecules."""
    place = np.full(view.num_chains, -1)
    place[molecules.chain] = np.arange(len(molecules.chain))
    molecule = molecules.entity * (molecules.sym.max(initial=0) + 1) + molecules.sym
    _, first = np.unique(view.residue_component, return_index=True)
    parts = []
    for chain in (view.token_chain(), view.residue_chain()[first]):
        rows = np.argsort(place[chain], kind="stable")
        rows = rows[place[chain[rows]] >= 0]
        parts += [rows, place[chain[rows]], counts_before(molecule[place[chain[rows]]])]
    return Layout(*parts)


def exchange(
    view: EntryView,
    layout: Layout,
    molecules: Molecules,
    crop: Crop,
    in_crop: Bool[np.ndarray, " n"],
    *,
    spatial: bool,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Atoms whose labels may change places with those of the crop, their tokens, and orders.

    Atoms are the entry's, b of them in the order of the labels, tokens numbers in the layout. Each
    component of the crop has so many orders, of so many atoms, that count the b atoms of a
    component of the same place. Of a spatial crop only molecules with a token in it may change
    places.
    """
    counts, sizes, orders = crop_orders(view, crop, _component_orders)
    offsets = view.component_atom()
    atoms = np.diff(offsets)
    # Places that any copy needs: one stretch of flags for each component of each kind.
    wide = int(layout.component_in_molecule.max()) + 1
    kind = molecules.entity[layout.component_chain] * wide + layout.component_in_molecule
    length = np.zeros(int(kind.max()) + 1, np.int64)
    length[kind] = atoms[layout.component]
    stretch = np.zeros(len(atoms), np.int64)
    stretch[layout.component] = (np.cumsum(length) - length)[kind]
    needed = np.zeros(int(length.sum()), bool)
    start = np.repeat(stretch[crop.component], counts * sizes)
    needed[start + orders] = True
    rank = np.cumsum(needed) - needed
    orders = rank[start + orders] - rank[start]
    ok = _may_change(layout, molecules, in_crop, spatial=spatial)[layout.component_chain]
    shown = layout.component[ok]
    atom = joined_runs(offsets[shown], atoms[shown])
    atom = atom[needed[joined_runs(stretch[shown], atoms[shown])]]
    number = np.zeros(view.num_tokens, np.int64)
    number[layout.token] = np.arange(len(layout.token))
    atom_token = np.repeat(np.arange(view.num_tokens), view.token_atoms)
    found = {"_order_counts": counts, "_order_sizes": sizes, "_orders": orders.astype(np.int32)}
    return atom, number[atom_token[atom]], found


def _may_change(
    layout: Layout, molecules: Molecules, in_crop: np.ndarray, *, spatial: bool
) -> Bool[np.ndarray, " c"]:
    """Chains whose molecules may change places with one of the crop."""
    seen = np.zeros(len(molecules.chain), bool)
    seen[layout.token_chain[in_crop]] = True
    key = molecules.entity * (int(molecules.sym.max()) + 1)
    if spatial:
        key = key + molecules.sym
    result: np.ndarray = np.isin(key, key[seen])
    return result


def _component_orders(
    view: EntryView, molecule: int, reference: Integer[np.ndarray, " a"]
) -> Integer[np.ndarray, "P a"]:
    """As `Orders` are; -1 where an order asks for an atom that the component does not have.

    They stand as a search lists them that maps the component's atoms first and those it lacks
    last: each next atom is the first beside those mapped, its candidates stand in the order of
    the bonds of the one beside it.
    """
    first, stop = view.molecule_atom[molecule], view.molecule_atom[molecule + 1]
    orders = view.molecule_orders[molecule]
    mine = reference - first
    if len(mine) == stop - first and (np.diff(mine) > 0).all():
        return orders
    atoms = np.concatenate([mine, np.setdiff1d(np.arange(stop - first), mine)])
    rank = np.argsort(atoms)
    moved = rank[orders[:, atoms]]
    bonds = view.molecule_bond
    own = rank[bonds[(bonds[:, 0] >= first) & (bonds[:, 0] < stop)] - first]
    visits, beside, place = _search(len(atoms), own)
    keys = np.where(beside < 0, moved[:, visits], place[moved[:, beside], moved[:, visits]])
    moved = moved[np.lexsort(keys[:, ::-1].T)]
    return np.where(moved < len(mine), moved, -1)[:, : len(mine)]


def _search(count: int, bonds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Atoms in the order of a search, one visited before beside each (-1 for none), and places
    of atoms among the neighbours of each atom."""
    near: list[list[int]] = [[] for _ in range(count)]
    place = np.zeros([count, count], np.int64)
    for a, b in bonds.tolist():
        for one, other in ((a, b), (b, a)):
            place[one, other] = len(near[one])
            near[one].append(other)
    left, edge = set(range(count)), set[int]()
    order: list[int] = []
    beside: list[int] = []
    while left:
        atom = min(edge & left or left)
        beside.append(next((other for other in near[atom] if other not in left), -1))
        order.append(atom)
        left.discard(atom)
        edge.update(near[atom])
    return np.array(order), np.array(beside), place

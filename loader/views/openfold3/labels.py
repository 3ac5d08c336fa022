"""Tokens of a crop in the order of their labels, and the atoms whose labels are exchangeable."""

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
    """Tokens and components of the chains of the chain crop, in the order of the labels.

    n tokens, g components; `token` and `component` are rows of the entry.
    """

    token: Integer[np.ndarray, " n"]
    token_chain: Integer[np.ndarray, " n"]
    """Index of the token's chain among the molecules' chains."""
    token_in_molecule: Integer[np.ndarray, " n"]
    """Number of the token in its molecule, from 0."""
    component: Integer[np.ndarray, " g"]
    component_chain: Integer[np.ndarray, " g"]
    component_in_molecule: Integer[np.ndarray, " g"]
    """Number of the component in its molecule, from 0."""


def lay_out(view: EntryView, molecules: Molecules) -> Layout:
    """The chains' tokens and components, chain by chain, numbered in their molecules."""
    chain_index = np.full(view.num_chains, -1)
    chain_index[molecules.chain] = np.arange(len(molecules.chain))
    molecule = molecules.entity * (molecules.sym.max(initial=0) + 1) + molecules.sym
    _, first = np.unique(view.residue_component, return_index=True)
    parts = []
    for chain in (view.token_chain(), view.residue_chain()[first]):
        rows = np.argsort(chain_index[chain], kind="stable")
        rows = rows[chain_index[chain[rows]] >= 0]
        chain = chain_index[chain[rows]]
        parts += [rows, chain, counts_before(molecule[chain])]
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
    """Atoms whose labels are exchangeable with those of the crop, their tokens, and orders.

    The b atoms are rows of the entry in the order of the labels, tokens are indices in the layout.
    Orders, for each component of the crop, index those of the b atoms that belong to one copy of
    the component. In a spatial crop only molecules with a token in it are exchangeable.
    """
    counts, sizes, orders = crop_orders(view, crop, _component_orders)
    offsets = view.component_atom()
    atoms = np.diff(offsets)
    # Atoms that any copy needs: flags for each component of each kind of molecule.
    num_components = int(layout.component_in_molecule.max()) + 1
    kind = molecules.entity[layout.component_chain] * num_components + layout.component_in_molecule
    length = np.zeros(int(kind.max()) + 1, np.int64)
    length[kind] = atoms[layout.component]
    offset = np.zeros(len(atoms), np.int64)
    offset[layout.component] = (np.cumsum(length) - length)[kind]
    needed = np.zeros(int(length.sum()), bool)
    start = np.repeat(offset[crop.component], counts * sizes)
    needed[start + orders] = True
    rank = np.cumsum(needed) - needed
    orders = rank[start + orders] - rank[start]
    chains = _exchangeable(layout, molecules, in_crop, spatial=spatial)
    components = layout.component[chains[layout.component_chain]]
    atom = joined_runs(offsets[components], atoms[components])
    atom = atom[needed[joined_runs(offset[components], atoms[components])]]
    layout_index = np.zeros(view.num_tokens, np.int64)
    layout_index[layout.token] = np.arange(len(layout.token))
    atom_token = np.repeat(np.arange(view.num_tokens), view.token_atoms)
    columns = {"_order_counts": counts, "_order_sizes": sizes, "_orders": orders.astype(np.int32)}
    return atom, layout_index[atom_token[atom]], columns


def _exchangeable(
    layout: Layout, molecules: Molecules, in_crop: np.ndarray, *, spatial: bool
) -> Bool[np.ndarray, " c"]:
    """Mask of chains whose molecules are exchangeable with one of the crop."""
    chain_in_crop = np.zeros(len(molecules.chain), bool)
    chain_in_crop[layout.token_chain[in_crop]] = True
    key = molecules.entity * (int(molecules.sym.max()) + 1)
    if spatial:
        key = key + molecules.sym
    exchangeable: np.ndarray = np.isin(key, key[chain_in_crop])
    return exchangeable


def _component_orders(
    view: EntryView, molecule: int, reference: Integer[np.ndarray, " a"]
) -> Integer[np.ndarray, "P a"]:
    """`Orders` of a component; -1 where an order uses an atom that the component lacks.

    They are sorted as a graph search lists them that maps the component's atoms first and those
    it lacks last: each next atom is the first neighbour of those mapped, and its candidates are in
    the order of the bonds of its parent in the search.
    """
    first, stop = view.molecule_atom[molecule], view.molecule_atom[molecule + 1]
    orders = view.molecule_orders[molecule]
    present = reference - first
    if len(present) == stop - first and (np.diff(present) > 0).all():
        return orders
    atoms = np.concatenate([present, np.setdiff1d(np.arange(stop - first), present)])
    rank = np.argsort(atoms)
    orders = rank[orders[:, atoms]]
    bonds = view.molecule_bond
    bonds = rank[bonds[(bonds[:, 0] >= first) & (bonds[:, 0] < stop)] - first]
    visits, parents, neighbor_index = _search(len(atoms), bonds)
    candidates = neighbor_index[orders[:, parents], orders[:, visits]]
    keys = np.where(parents < 0, orders[:, visits], candidates)
    orders = orders[np.lexsort(keys[:, ::-1].T)]
    return np.where(orders < len(present), orders, -1)[:, : len(present)]


def _search(count: int, bonds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Atoms in the order of a graph search, the parent of each (-1 for none), and the index of
    each atom among the neighbours of each other."""
    neighbors: list[list[int]] = [[] for _ in range(count)]
    neighbor_index = np.zeros([count, count], np.int64)
    for a, b in bonds.tolist():
        for end, other in ((a, b), (b, a)):
            neighbor_index[end, other] = len(neighbors[end])
            neighbors[end].append(other)
    unvisited, frontier = set(range(count)), set[int]()
    order: list[int] = []
    parents: list[int] = []
    while unvisited:
        atom = min(frontier & unvisited or unvisited)
        parents.append(next((other for other in neighbors[atom] if other not in unvisited), -1))
        order.append(atom)
        unvisited.discard(atom)
        frontier.update(neighbors[atom])
    return np.array(order), np.array(parents), neighbor_index

"""Molecules of an entry, i.e. chains joined by bonds, and which of them are exchangeable.

Two molecules are equal if their chains can be put in an order in which atoms, residues, entities
and the bonds between chains are the same. The chains of equal molecules are put in the order of
the first one, so that their atoms correspond. Source: AF3 SI 4.2.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.entry_view import EntryView, connected_roots

Links = frozenset[frozenset[tuple[int, int]]]
"""Bonds between chains: two ends, each an index of the molecule's chain and of its atom."""


@dataclass(frozen=True, slots=True)
class Molecules:
    """The c chains in the order of the labels, and the molecule of each."""

    chain: Integer[np.ndarray, " c"]
    """Row of the chain in the entry."""
    entity: Integer[np.ndarray, " c"]
    """Number of the kind of molecule, from 1."""
    sym: Integer[np.ndarray, " c"]
    """Number of the molecule among those of its kind, from 1."""


def molecules_of(view: EntryView, chains: Bool[np.ndarray, " C"]) -> Molecules:
    """The molecules of these chains, without bonds to other chains."""
    rows = np.flatnonzero(chains)
    links = _links(view, chains)
    root = connected_roots(rows, links[:, [0, 2]], view.num_chains)
    components = [rows[root == first].tolist() for first in np.unique(root)]
    kind = _chain_kinds(view)
    size = np.diff(view.residue_atom[view.chain_residue])
    groups: dict[tuple[tuple[int, ...], int], list[list[int]]] = defaultdict(list)
    for members in components:
        entities = tuple(sorted({int(view.chain_entity[chain]) for chain in members}))
        groups[entities, int(size[members].sum())].append(members)
    order = np.empty(view.num_chains, np.int64)  # the chain at each row
    entity = np.empty(view.num_chains, np.int64)
    sym = np.empty(view.num_chains, np.int64)
    number = 0
    for group in groups.values():
        kinds: list[tuple[list[int], Links, int]] = []
        copies: dict[int, int] = defaultdict(int)
        for members in group:
            bonds = _between(members, links)
            equal, equal_number = members, number + 1
            for first, first_bonds, first_number in kinds:
                arranged = _arranged_as(first, first_bonds, members, bonds, kind)
                if arranged is not None:
                    equal, equal_number = arranged, first_number
                    break
            else:
                number += 1
                kinds.append((members, bonds, number))
            copies[equal_number] += 1
            order[members], entity[members] = equal, equal_number
            sym[members] = copies[equal_number]
    return Molecules(order[rows], entity[rows], sym[rows])


def _links(view: EntryView, chains: np.ndarray) -> np.ndarray:
    """Bonds between two of these chains, `[n, 4]`: chain and atom in it of both ends."""
    starts = view.residue_atom[view.chain_residue[:-1]]
    chain = np.searchsorted(starts, view.bond_atom, side="right") - 1
    between = (chain[:, 0] != chain[:, 1]) & chains[chain].all(1)
    ends, end_chain = view.bond_atom[between], chain[between]
    atoms = ends - starts[end_chain]
    return np.stack([end_chain[:, 0], atoms[:, 0], end_chain[:, 1], atoms[:, 1]], 1)


def _chain_kinds(view: EntryView) -> list[bytes]:
    """Keys that are equal for chains with the same entity, residues and atoms."""
    names = np.ascontiguousarray(view.residue_name).view(np.uint8).reshape(view.num_residues, -1)
    sizes = np.diff(view.residue_atom)
    kinds = []
    for row, (first, stop) in enumerate(
        zip(view.chain_residue[:-1], view.chain_residue[1:], strict=True)
    ):
        atoms = slice(view.residue_atom[first], view.residue_atom[stop])
        kinds.append(
            b"%d;" % view.chain_entity[row]
            + names[first:stop].tobytes()
            + sizes[first:stop].tobytes()
            + view.atom_name[atoms].tobytes()
        )
    return kinds


def _between(members: list[int], links: np.ndarray) -> Links:
    if len(members) == 1:
        return frozenset()
    index = {row: number for number, row in enumerate(members)}
    return frozenset(
        frozenset([(index[a], i), (index[b], j)]) for a, i, b, j in links.tolist() if a in index
    )


def _arranged_as(
    first: list[int], first_bonds: Links, members: list[int], bonds: Links, kind: list[bytes]
) -> list[int] | None:
    """The members in an order in which they equal the first molecule; None if there is none.

    Orders are tried from that of `members` on, so that one that is already right is kept.
    """
    if len(first) != len(members) or len(first_bonds) != len(bonds):
        return None
    order: list[int] = []  # indices of members

    def bonds_match() -> bool:
        rank = {index: number for number, index in enumerate(order)}
        mapped = {
            frozenset((rank[index], atom) for index, atom in bond)
            for bond in bonds
            if all(index in rank for index, _ in bond)
        }
        count = len(order)
        return mapped == {bond for bond in first_bonds if all(end[0] < count for end in bond)}

    def extend() -> bool:
        count = len(order)
        if count == len(first):
            return True
        for index, row in enumerate(members):
            if index in order or kind[row] != kind[first[count]]:
                continue
            order.append(index)
            if bonds_match() and extend():
                return True
            order.pop()
        return False

    return [members[index] for index in order] if extend() else None

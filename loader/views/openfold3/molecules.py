"""Molecules of an entry that may change places: chains joined by bonds, and their equals.

Two molecules are equal if their chains can be put in an order in which atoms, residues, entities
and the bonds between chains are the same. Chains of equal molecules are put in the order of the
first, so that the atoms of all stand alike. Source: AF3 SI 4.2.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.entry_view import EntryView, first_of_joined

Links = frozenset[frozenset[tuple[int, int]]]
"""Bonds between chains: both ends, each a place among the molecule's chains and an atom there."""


@dataclass(frozen=True, slots=True)
class Molecules:
    """Chains in the order of the labels, c of them, and the molecule each belongs to."""

    chain: Integer[np.ndarray, " c"]
    """Row of the chain in the entry."""
    entity: Integer[np.ndarray, " c"]
    """Number of the kind of molecule, from 1."""
    sym: Integer[np.ndarray, " c"]
    """Which molecule of its kind, from 1."""


def molecules_of(view: EntryView, chains: Bool[np.ndarray, " C"]) -> Molecules:
    """The molecules that these chains make; bonds to other chains do not count."""
    rows = np.flatnonzero(chains)
    links = _links(view, chains)
    root = first_of_joined(rows, links[:, [0, 2]], view.num_chains)
    joined = [rows[root == one].tolist() for one in np.unique(root)]
    kind = _chain_kinds(view)
    size = np.diff(view.residue_atom[view.chain_residue])
    groups: dict[tuple[tuple[int, ...], int], list[list[int]]] = defaultdict(list)
    for members in joined:
        entities = tuple(sorted({int(view.chain_entity[one]) for one in members}))
        groups[entities, int(size[members].sum())].append(members)
    order = np.empty(view.num_chains, np.int64)  # by row: the chain that stands there
    entity = np.empty(view.num_chains, np.int64)
    sym = np.empty(view.num_chains, np.int64)
    number = 0
    for group in groups.values():
        kinds: list[tuple[list[int], Links, int]] = []
        copies: dict[int, int] = defaultdict(int)
        for members in group:
            own = _between(members, links)
            same, which = members, number + 1
            for first, theirs, known in kinds:
                found = _in_order_of(first, theirs, members, own, kind)
                if found is not None:
                    same, which = found, known
                    break
            else:
                number += 1
                kinds.append((members, own, number))
            copies[which] += 1
            order[members], entity[members], sym[members] = same, which, copies[which]
    return Molecules(order[rows], entity[rows], sym[rows])


def _links(view: EntryView, chains: np.ndarray) -> np.ndarray:
    """Bonds between two of these chains: chain, atom there, chain, atom there, `[n, 4]`."""
    starts = view.residue_atom[view.chain_residue[:-1]]
    chain = np.searchsorted(starts, view.bond_atom, side="right") - 1
    between = (chain[:, 0] != chain[:, 1]) & chains[chain].all(1)
    ends, there = view.bond_atom[between], chain[between]
    atoms = ends - starts[there]
    return np.stack([there[:, 0], atoms[:, 0], there[:, 1], atoms[:, 1]], 1)


def _chain_kinds(view: EntryView) -> list[bytes]:
    """Equal for chains with the same entity, residues and atoms."""
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
    place = {row: number for number, row in enumerate(members)}
    return frozenset(
        frozenset([(place[a], i), (place[b], j)]) for a, i, b, j in links.tolist() if a in place
    )


def _in_order_of(
    first: list[int], theirs: Links, members: list[int], own: Links, kind: list[bytes]
) -> list[int] | None:
    """The members in an order in which they equal the first molecule; None if there is none.

    Chains are tried in their order, so that a molecule that already stands right is left so.
    """
    if len(first) != len(members) or len(theirs) != len(own):
        return None
    taken: list[int] = []  # places of members

    def fits(count: int) -> bool:
        to = {place: number for number, place in enumerate(taken)}
        done = {
            frozenset((to[place], atom) for place, atom in bond)
            for bond in own
            if all(place in to for place, _ in bond)
        }
        return done == {bond for bond in theirs if all(place < count for place, _ in bond)}

    def place_next() -> bool:
        count = len(taken)
        if count == len(first):
            return True
        for place, row in enumerate(members):
            if place in taken or kind[row] != kind[first[count]]:
                continue
            taken.append(place)
            if fits(count + 1) and place_next():
                return True
            taken.pop()
        return False

    return [members[place] for place in taken] if place_next() else None

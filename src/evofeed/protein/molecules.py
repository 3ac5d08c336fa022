"""Reference molecules: atoms, bonds and conformers of chemical components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.shapes import Bool, Float, Integer, Shaped, UInt8

ELEMENTS: Final = (
    "H HE LI BE B C N O F NE NA MG AL SI P S CL AR K CA SC TI V CR MN FE CO NI CU ZN GA GE AS SE "
    "BR KR RB SR Y ZR NB MO TC RU RH PD AG CD IN SN SB TE I XE CS BA LA CE PR ND PM SM EU GD TB DY "
    "HO ER TM YB LU HF TA W RE OS IR PT AU HG TL PB BI PO AT RN FR RA AC TH PA U NP PU AM CM BK CF "
    "ES FM MD NO LR RF DB SG BH HS MT DS RG CN NH FL MC LV TS OG"
).split()
"""Symbols in upper case, by atomic number from 1."""


def element_numbers(elements: Shaped[np.ndarray, " A"]) -> UInt8[np.ndarray, " A"]:
    """Atomic numbers of symbols in any case, 0 if unknown."""
    numbers = {name: number for number, name in enumerate(ELEMENTS, 1)}
    names, inverse = np.unique(elements, return_inverse=True)
    return np.array([numbers.get(name.upper(), 0) for name in names.tolist()], np.uint8)[inverse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Molecule:
    """One component, or a ligand of several components. a atoms, b bonds, K conformers,
    P orders."""

    name: Shaped[np.ndarray, " a"]
    """Text: names of atoms; they repeat in a ligand of several components."""
    element: Integer[np.ndarray, " a"]
    """Atomic numbers."""
    charge: Integer[np.ndarray, " a"]
    position: Float[np.ndarray, "K a 3"]
    """Conformers, ångström; zeros where masked."""
    mask: Bool[np.ndarray, " a"]
    """True if the atom has coordinates."""
    bond: Integer[np.ndarray, "b 2"]
    """Pairs of bonded atoms, in the order of the component's bonds."""
    orders: Integer[np.ndarray, "P a"]
    """Symmetries: permutations of the atoms that give the same molecule, with the identity."""

    def rows_of(self, title: str, names: Shaped[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """Row of the atom of every name, `i32`; a repeated name is the next atom of that name.

        Raises:
            MoleculeMissing: the molecule has no such atom; names `title`.
        """
        rows = {key: row for row, key in enumerate(numbered(self.name))}
        try:
            return np.array([rows[key] for key in numbered(names)], np.int32)
        except KeyError as error:
            raise MoleculeMissing(f"reference molecule {title} has no atom {error}") from None

    def overlaid(self, other: Molecule) -> Molecule:
        """The molecule with the conformer of `other`, which may lack some of its atoms.

        Atoms of `other` alone are appended, and every order leaves them in place.
        """
        rows = {key: row for row, key in enumerate(numbered(self.name))}
        new = [row for row, key in enumerate(numbered(other.name)) if key not in rows]
        target = np.array([rows.get(key, -1) for key in numbered(other.name)], np.int64)
        target[new] = len(self.name) + np.arange(len(new))
        position = np.concatenate([self.position[:1], other.position[:1, new]], axis=1)
        mask = np.append(self.mask, other.mask[new])
        position[:, target], mask[target] = other.position[:1], other.mask
        tail = np.broadcast_to(target[new], (len(self.orders), len(new)))
        return replace(
            self,
            name=np.append(self.name, other.name[new]),
            element=np.append(self.element, other.element[new]),
            charge=np.append(self.charge, other.charge[new]),
            position=position,
            mask=mask,
            orders=np.concatenate([self.orders, tail], axis=1),
        )


def numbered(names: Shaped[np.ndarray, " a"]) -> list[tuple[str, int]]:
    """Every name with the number of its earlier occurrences."""
    counts: dict[str, int] = {}
    pairs = []
    for name in names.tolist():
        pairs.append((name, counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    return pairs


class MoleculeMissing(InputError):
    """No reference molecule of that name, or it lacks an atom."""


def molecule(molecules: Mapping[str, Molecule], name: str) -> Molecule:
    """The reference molecule of that name.

    Raises:
        MoleculeMissing: there is none.
    """
    if name not in molecules:
        raise MoleculeMissing(f"no reference molecule {name!r}: make its conformers first")
    return molecules[name]

"""Reference molecules: what the atoms of a component look like when nobody measured them."""

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
"""By atomic number, from 1, in upper case."""


def element_numbers(elements: Shaped[np.ndarray, " A"]) -> UInt8[np.ndarray, " A"]:
    """Atomic numbers of symbols in any case, 0 if unknown."""
    numbers = {name: number for number, name in enumerate(ELEMENTS, 1)}
    names, inverse = np.unique(elements, return_inverse=True)
    return np.array([numbers.get(name.upper(), 0) for name in names.tolist()], np.uint8)[inverse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Molecule:
    """One component, or a ligand of several as one molecule. a atoms, b bonds, K conformers,
    P orders."""

    name: Shaped[np.ndarray, " a"]
    """Text: names of atoms; they repeat in a ligand of several components."""
    element: Integer[np.ndarray, " a"]
    """Atomic numbers."""
    charge: Integer[np.ndarray, " a"]
    position: Float[np.ndarray, "K a 3"]
    """Conformers, ångström; zeros where masked."""
    mask: Bool[np.ndarray, " a"]
    """Whether the atom has coordinates."""
    bond: Integer[np.ndarray, "b 2"]
    """Atoms that are bonded, in the order of the component's bonds."""
    orders: Integer[np.ndarray, "P a"]
    """Orders of the atoms that leave the molecule the same, the identity among them."""

    def rows_of(self, title: str, names: Shaped[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """`i32`: row of the atom of every name; a name that repeats is the next one of that name.

        Raises:
            MoleculeMissing: it has no such atom; names `title`.
        """
        rows = {key: row for row, key in enumerate(numbered(self.name))}
        try:
            return np.array([rows[key] for key in numbered(names)], np.int32)
        except KeyError as error:
            raise MoleculeMissing(f"reference molecule {title} has no atom {error}") from None

    def overlaid(self, known: Molecule) -> Molecule:
        """The molecule with the conformer of `known`, which may lack some of its atoms.

        Atoms that it lacks itself come last, and stay where they are in every order.
        """
        rows = {key: row for row, key in enumerate(numbered(self.name))}
        new = [row for row, key in enumerate(numbered(known.name)) if key not in rows]
        place = np.array([rows.get(key, -1) for key in numbered(known.name)], np.int64)
        place[new] = len(self.name) + np.arange(len(new))
        position = np.concatenate([self.position[:1], known.position[:1, new]], axis=1)
        mask = np.append(self.mask, known.mask[new])
        position[:, place], mask[place] = known.position[:1], known.mask
        tail = np.broadcast_to(place[new], (len(self.orders), len(new)))
        return replace(
            self,
            name=np.append(self.name, known.name[new]),
            element=np.append(self.element, known.element[new]),
            charge=np.append(self.charge, known.charge[new]),
            position=position,
            mask=mask,
            orders=np.concatenate([self.orders, tail], axis=1),
        )


def numbered(names: Shaped[np.ndarray, " a"]) -> list[tuple[str, int]]:
    """Every name with how often it came before."""
    seen: dict[str, int] = {}
    out = []
    for name in names.tolist():
        out.append((name, seen.get(name, 0)))
        seen[name] = seen.get(name, 0) + 1
    return out


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

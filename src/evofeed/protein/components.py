"""Chemical components of entries: their atoms, bonds and coordinates."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.protein.entry_record import DNA, HYDROGENS, LIGAND, PROTEIN, RNA, ChainType

BOND_ORDERS: Final = {"SING": 1, "DOUB": 2, "TRIP": 3, "QUAD": 4, "AROM": 5, "DELO": 6}
"""`_chem_comp_bond.value_order` as a number; 0 is any other."""


class ComponentMissing(InputError, KeyError):
    """The dictionary has no component of that code."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """One component as the dictionary defines it, hydrogens included. a atoms, b bonds."""

    code: str
    type: str
    """`_chem_comp.type`, as the dictionary writes it."""
    one_letter: str
    """`one_letter_code`; empty if it has none."""
    parent: str
    """`mon_nstd_parent_comp_id`; empty if it has none."""
    name: Shaped[np.ndarray, " a"]
    """Text: `atom_id`."""
    element: Shaped[np.ndarray, " a"]
    """Text: `type_symbol`, upper case."""
    charge: Integer[np.ndarray, " a"]
    leaving: Bool[np.ndarray, " a"]
    """`pdbx_leaving_atom_flag`."""
    bond: Integer[np.ndarray, "b 2"]
    """Atoms of every bond, in the order of the dictionary."""
    bond_order: Integer[np.ndarray, " b"]
    """As `BOND_ORDERS`."""
    bond_aromatic: Bool[np.ndarray, " b"]
    ideal: Float[np.ndarray, "a 3"]
    """Ideal coordinates, ångström; NaN where the dictionary has none."""
    model: Float[np.ndarray, "a 3"]
    """Coordinates of the model entry, ångström; NaN where the dictionary has none."""
    model_entry: str
    """`pdbx_model_coordinates_db_code`; empty if not given."""

    @functools.cached_property
    def heavy(self) -> Bool[np.ndarray, " a"]:
        """Atoms that are neither hydrogen nor deuterium."""
        return ~np.isin(self.element, HYDROGENS)

    @property
    def kind(self) -> ChainType:
        """Chain type of its residues, by the component's type, as in Protenix."""
        text = self.type.upper()
        if "PEPTIDE" in text and text != "PEPTIDE-LIKE":
            return PROTEIN
        if "DNA" in text:
            return DNA
        return RNA if "RNA" in text else LIGAND

    @functools.cached_property
    def rows(self) -> dict[str, int]:
        """Row of every atom by its name."""
        return {str(name): row for row, name in enumerate(self.name)}


class ComponentTable(dict[str, Component]):
    """Components by code.

    Raises:
        ComponentMissing: a code that is not in it.
    """

    def __missing__(self, code: str) -> Component:
        raise ComponentMissing(
            f"component {code!r} is not in the dictionary of components: give a newer "
            "components.cif"
        )

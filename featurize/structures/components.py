"""`components.cif` -> `ComponentTable`: the definitions of the wwPDB's chemical components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.featurize.structures.cif import UNSET, values_of
from evofeed.protein.components import BOND_ORDERS, Component, ComponentTable

_UNKNOWN = (*UNSET, "")


def read_components(path: str | Path) -> ComponentTable:
    """The components of a dictionary, `components.cif`, plain or .gz.

    Raises:
        MmcifError: the file is missing, no mmCIF, or a component lacks a table.
    """
    import gemmi

    try:
        document = gemmi.cif.read(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise MmcifError(f"no dictionary of components: {error}", path=str(path)) from None
    return ComponentTable({block.name: _component(block, str(path)) for block in document})


def _component(block: Any, path: str) -> Component:
    def atoms(item: str) -> list[str]:
        return values_of(block, f"_chem_comp_atom.{item}")

    def bonds(item: str) -> list[str]:
        return values_of(block, f"_chem_comp_bond.{item}")

    def about(item: str) -> str:
        (text, *_) = [*values_of(block, f"_chem_comp.{item}"), ""]
        return "" if text in _UNKNOWN else text

    def coordinates(item: str) -> np.ndarray:
        columns = [atoms(item.format(axis)) or ["?"] * len(name) for axis in "xyz"]
        return np.array([[np.nan if v in _UNKNOWN else float(v) for v in c] for c in columns]).T

    name = atoms("atom_id")  # UNL: defined, without an atom
    rows = {atom: row for row, atom in enumerate(name)}
    ends = zip(bonds("atom_id_1"), bonds("atom_id_2"), strict=True)
    try:
        pairs = [(rows[one], rows[two]) for one, two in ends]
    except KeyError as error:
        raise MmcifError(
            f"component {block.name}: a bond names atom {error}, which it does not have", path=path
        ) from None
    order = [BOND_ORDERS.get(value.upper(), 0) for value in bonds("value_order")]
    return Component(
        code=block.name,
        type=about("type"),
        one_letter=about("one_letter_code"),
        parent=about("mon_nstd_parent_comp_id"),
        name=np.array(name, np.str_),
        element=np.array([value.upper() for value in atoms("type_symbol")], np.str_),
        charge=np.array([0 if v in _UNKNOWN else int(v) for v in atoms("charge")], np.int8),
        leaving=np.array([value == "Y" for value in atoms("pdbx_leaving_atom_flag")], bool),
        bond=np.array(pairs, np.int32).reshape(-1, 2),
        bond_order=np.array(order, np.int8),
        bond_aromatic=np.array([value == "Y" for value in bonds("pdbx_aromatic_flag")], bool),
        ideal=coordinates("pdbx_model_Cartn_{}_ideal"),
        model=coordinates("model_Cartn_{}"),
        model_entry=about("pdbx_model_coordinates_db_code"),
    )

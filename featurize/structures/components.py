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
        MmcifError: the file is missing or not mmCIF, or a component lacks a table.
    """
    import gemmi

    if not Path(path).is_file():  # a pipe would never end
        raise MmcifError("no dictionary of components: no such file", path=str(path))
    try:
        document = gemmi.cif.read(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise MmcifError(f"no dictionary of components: {error}", path=str(path)) from None
    components = {}
    for block in document:
        try:
            components[block.name] = _component(block)
        except (KeyError, ValueError, OverflowError) as error:
            message = f"component {block.name}: its tables do not fit together: {error}"
            raise MmcifError(message, path=str(path)) from None
    return ComponentTable(components)


def _component(block: Any) -> Component:
    def atoms(item: str) -> list[str]:
        return values_of(block, f"_chem_comp_atom.{item}") or ["?"] * len(name)

    def bonds(item: str) -> list[str]:
        return values_of(block, f"_chem_comp_bond.{item}") or ["?"] * len(begin)

    def component(item: str) -> str:
        (text, *_) = [*values_of(block, f"_chem_comp.{item}"), ""]
        return "" if text in _UNKNOWN else text

    def coordinates(item: str) -> np.ndarray:
        columns = [atoms(item.format(axis)) for axis in "xyz"]
        return np.array([[np.nan if v in _UNKNOWN else float(v) for v in c] for c in columns]).T

    name = values_of(block, "_chem_comp_atom.atom_id")  # UNL: defined, without an atom
    element = values_of(block, "_chem_comp_atom.type_symbol")
    begin, end = (values_of(block, f"_chem_comp_bond.atom_id_{number}") for number in (1, 2))
    if len(element) != len(name):
        raise ValueError(f"{len(name)} names of atoms, {len(element)} elements")
    rows = {atom: row for row, atom in enumerate(name)}
    if undefined := sorted({*begin, *end} - rows.keys()):
        raise ValueError(f"a bond names atom {undefined[0]!r}, which it does not have")
    pairs = [(rows[first], rows[second]) for first, second in zip(begin, end, strict=True)]
    order = [BOND_ORDERS.get(value.upper(), 0) for value in bonds("value_order")]
    return Component(
        code=block.name,
        type=component("type"),
        one_letter=component("one_letter_code"),
        parent=component("mon_nstd_parent_comp_id"),
        name=np.array(name, np.str_),
        element=np.array([value.upper() for value in element], np.str_),
        charge=np.array([0 if v in _UNKNOWN else int(v) for v in atoms("charge")], np.int8),
        leaving=np.array([value == "Y" for value in atoms("pdbx_leaving_atom_flag")], bool),
        bond=np.array(pairs, np.int32).reshape(-1, 2),
        bond_order=np.array(order, np.int8),
        bond_aromatic=np.array([value == "Y" for value in bonds("pdbx_aromatic_flag")], bool),
        ideal=coordinates("pdbx_model_Cartn_{}_ideal"),
        model=coordinates("model_Cartn_{}"),
        model_entry=component("pdbx_model_coordinates_db_code"),
    )

"""`components.cif` -> `ComponentTable`: the definitions of the wwPDB's chemical components."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.protein.components import BOND_ORDERS, Component, ComponentTable

_UNKNOWN = (".", "?", "")


def read_components(path: str | Path, codes: Collection[str] | None = None) -> ComponentTable:
    """The components of a dictionary, all or those of `codes`.

    Args:
        path: `components.cif`, plain or .gz.
        codes: which to read; a code that the file lacks is left out.

    Raises:
        MmcifError: the file is missing, no mmCIF, or a component lacks a table.
    """
    import gemmi

    try:
        document = gemmi.cif.read(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise MmcifError(f"no dictionary of components: {error}", path=str(path)) from None
    components = {}
    for block in document:
        if codes is None or block.name in codes:
            components[block.name] = _component(block, str(path))
    return ComponentTable(components)


def _component(block: Any, path: str) -> Component:
    code = block.name
    text = _reader(block, "_chem_comp_atom.")
    name = text("atom_id")
    if not name:
        return _empty(block)
    rows = {atom: row for row, atom in enumerate(name)}
    bonds = _reader(block, "_chem_comp_bond.")
    try:
        pairs = [
            (rows[one], rows[two])
            for one, two in zip(bonds("atom_id_1"), bonds("atom_id_2"), strict=True)
        ]
    except KeyError as error:
        raise MmcifError(
            f"component {code}: a bond names atom {error}, which it does not have", path=path
        ) from None
    return Component(
        code=code,
        type=_value(block, "type"),
        one_letter=_value(block, "one_letter_code"),
        parent=_value(block, "mon_nstd_parent_comp_id"),
        name=np.array(name, np.str_),
        element=np.array([value.upper() for value in text("type_symbol")], np.str_),
        charge=np.array([0 if v in _UNKNOWN else int(v) for v in text("charge")], np.int8),
        leaving=np.array([value == "Y" for value in text("pdbx_leaving_atom_flag")], bool),
        bond=np.array(pairs, np.int32).reshape(-1, 2),
        bond_order=np.array(
            [BOND_ORDERS.get(value.upper(), 0) for value in bonds("value_order")], np.int8
        ),
        bond_aromatic=np.array([value == "Y" for value in bonds("pdbx_aromatic_flag")], bool),
        ideal=_coordinates(text, "pdbx_model_Cartn_{}_ideal", len(name)),
        model=_coordinates(text, "model_Cartn_{}", len(name)),
        model_entry=_value(block, "pdbx_model_coordinates_db_code"),
    )


def _empty(block: Any) -> Component:
    # UNL: defined, without an atom.
    return Component(
        code=block.name,
        type=_value(block, "type"),
        one_letter=_value(block, "one_letter_code"),
        parent=_value(block, "mon_nstd_parent_comp_id"),
        name=np.zeros(0, np.str_),
        element=np.zeros(0, np.str_),
        charge=np.zeros(0, np.int8),
        leaving=np.zeros(0, bool),
        bond=np.zeros((0, 2), np.int32),
        bond_order=np.zeros(0, np.int8),
        bond_aromatic=np.zeros(0, bool),
        ideal=np.zeros((0, 3)),
        model=np.zeros((0, 3)),
        model_entry="",
    )


def _reader(block: Any, prefix: str) -> Callable[[str], list[str]]:
    import gemmi

    def column(item: str) -> list[str]:
        return [gemmi.cif.as_string(value) for value in block.find_values(prefix + item)]

    return column


def _value(block: Any, item: str) -> str:
    import gemmi

    value = block.find_value("_chem_comp." + item)
    text = gemmi.cif.as_string(value) if value else ""
    return "" if text in _UNKNOWN else text


def _coordinates(text: Callable[[str], list[str]], item: str, atoms: int) -> np.ndarray:
    columns = [text(item.format(axis)) or ["?"] * atoms for axis in "xyz"]
    return np.array(
        [[np.nan if value in _UNKNOWN else float(value) for value in column] for column in columns]
    ).T

"""Boltz's prepared set -> records: `manifest.json`, `structures/*.npz` and `msa/*.npz` as they are.

A structure has Boltz's own cleaning behind it, so its section is exact and the other projects have
none. Chains of the assembly stand as chains of the file; what Boltz left out is not in its tables.
Layout: Boltz's `data/types.py` (structured arrays). Version 2 has no elements, charges and shapes
of atoms, and links are bonds; its further models and B factors are not read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.files import parse_json
from evofeed.featurize.entries.targets import (
    PreparedSet,
    Target,
    array_section,
    conformers_of,
    target_of,
)
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import offsets
from evofeed.protein.molecules import ELEMENTS

_COVALENT: Final = 5
"""Version 2's type of a link, which version 1 has none of."""

_WITHOUT_ROWS: Final = {"", "None", "-1"}


def boltz_set(place: str | Path, alignments: str) -> PreparedSet | None:
    """The targets in a folder; None if there are none.

    Raises:
        InputError: the manifest is none.
    """
    root = Path(place)
    manifest, home = root / "manifest.json", Path(alignments or root / "msa")
    if not manifest.is_file() or not (root / "structures").is_dir():
        return None
    try:
        read = parse_json(manifest.read_bytes())
        records = read["records"] if isinstance(read, dict) else read
        items = []
        for record in records:
            ids = sorted({str(c["msa_id"]) for c in record["chains"]} - _WITHOUT_ROWS)
            rows = [str(home / f"{one}.npz") for one in ids]
            path = str(root / "structures" / f"{record['id']}.npz")
            items.append((str(record["id"]), path, json.dumps(record), *rows))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"no manifest of Boltz: {error!r}", path=str(manifest)) from None
    return PreparedSet("boltz", items, str(home) if alignments or home.is_dir() else "")


def boltz_target(
    about: Mapping[str, Any],
    tables: Mapping[str, np.ndarray],
    queries: Mapping[str, str],
    components: ComponentTable,
) -> Target:
    """A structure's tables, its entry of the manifest, and queries of its alignments."""
    atoms, residues, chains, bonds = (tables[n] for n in ("atoms", "residues", "chains", "bonds"))
    is_second = "connections" not in tables
    links = bonds[:0] if is_second else tables["connections"]
    of_chain = _owners(residues, chains["res_idx"], chains["res_num"])
    of_atom = _owners(atoms, residues["atom_idx"], residues["atom_num"])
    size, chain = len(atoms), of_chain[of_atom]
    pairs = [
        np.stack([one["atom_1"], one["atom_2"], kind], 1).astype(np.int64)
        for one, kind in ((bonds, bonds["type"] % _COVALENT), (links, np.zeros(len(links))))
    ]
    name = residues["name"][of_atom]
    if is_second:
        titles, molecules = atoms["name"].tolist(), None
        element, charge = _of_dictionary(name.tolist(), titles, components)
    else:
        titles = [_text(row) for row in atoms["name"]]
        element, charge = np.array(["", *ELEMENTS])[atoms["element"]], atoms["charge"]
    section = array_section(
        "boltz",
        {
            "chain_id": chains["name"][chain],
            "res_name": name,
            "ins_code": np.full(size, ""),
            "res_id": residues["res_idx"][of_atom],
            "atom_name": titles,
            "element": element,
            "charge": charge,
            "hetero": np.zeros(size, bool),
        },
        np.concatenate(pairs),
        atoms["is_present"].astype(bool),
        [chains["name"][[*near]].tolist() for near in tables["interfaces"][["chain_1", "chain_2"]]],
        chain_type=chains["mol_type"][chain],
        chain_entity=chains["entity_id"][chain],
    )
    section = dataclasses.replace(section, chain_valid=tables["mask"].astype(bool))
    own = [about["chains"][row] for row in range(len(chains))]
    if not is_second:
        molecules = conformers_of(section, atoms["element"], charge, atoms["conformer"])
    return target_of(
        section,
        str(about["id"]),
        atoms["coords"],
        about["structure"],
        [(queries.get(str(one["msa_id"])), one["cluster_id"]) for one in own],
        before=-1,
        molecules=molecules,
    )


def _of_dictionary(
    residues: Sequence[str], atoms: Sequence[str], components: ComponentTable
) -> tuple[np.ndarray, np.ndarray]:
    """Element and charge of every atom, of whose name Boltz keeps four characters."""
    rows = {
        name: {atom[:4]: row for atom, row in reversed(components[name].rows.items())}
        for name in set(residues)
    }
    pairs = [*zip(residues, atoms, strict=True)]
    if lost := [pair for pair in pairs if pair[1] not in rows[pair[0]]]:
        raise ValueError(f"the dictionary's {lost[0][0]} has no atom {lost[0][1]}")
    found = [(components[name], rows[name][atom]) for name, atom in pairs]
    charges = np.array([one.charge[row] for one, row in found])
    return np.array([one.element[row] for one, row in found]), charges


def _owners(rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Owner of every row, where rows stand end to end.

    Raises:
        ValueError: they do not.
    """
    ends = offsets(counts)
    if not np.array_equal(ends[:-1], starts) or ends[-1] != len(rows):
        raise ValueError("rows do not stand end to end")
    return np.repeat(np.arange(len(counts)), counts)


def _text(codes: np.ndarray) -> str:
    return "".join(chr(code + 32) for code in codes.tolist() if code)

"""Boltz's prepared set -> records, from `manifest.json`, `structures/*.npz` and `msa/*.npz`.

Structures are cleaned by Boltz itself, so its section is exact and other projects have none.
Chains of the assembly are chains of the file; what Boltz left out is not in its tables. Layout:
Boltz's `data/types.py` (structured arrays). Version 2 has no elements, charges and conformers, and
links are bonds; its further models and B factors are not read.
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
    build_target,
    reference_molecules,
)
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import offsets
from evofeed.protein.molecules import ELEMENTS

_COVALENT: Final = 5
"""Bond type of a link in version 2; version 1 has no such bonds."""

_NO_ALIGNMENT: Final = {"", "None", "-1"}


def boltz_set(folder: str | Path, alignments: str) -> PreparedSet | None:
    """The targets in a folder; None if there are none.

    Raises:
        InputError: the manifest is damaged.
    """
    root = Path(folder)
    manifest, alignment_folder = root / "manifest.json", Path(alignments or root / "msa")
    if not manifest.is_file() or not (root / "structures").is_dir():
        return None
    try:
        content = parse_json(manifest.read_bytes())
        records = content["records"] if isinstance(content, dict) else content
        items = []
        for record in records:
            ids = sorted({str(c["msa_id"]) for c in record["chains"]} - _NO_ALIGNMENT)
            rows = [str(alignment_folder / f"{msa_id}.npz") for msa_id in ids]
            path = str(root / "structures" / f"{record['id']}.npz")
            items.append((str(record["id"]), path, json.dumps(record), *rows))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a manifest of Boltz: {error!r}", path=str(manifest)) from None
    has_alignments = alignments or alignment_folder.is_dir()
    return PreparedSet("boltz", items, str(alignment_folder) if has_alignments else "")


def boltz_target(
    metadata: Mapping[str, Any],
    tables: Mapping[str, np.ndarray],
    queries: Mapping[str, str],
    components: ComponentTable,
) -> Target:
    """The target of a structure: its tables, its entry in the manifest, queries by `msa_id`."""
    atoms, residues, chains, bonds = (tables[n] for n in ("atoms", "residues", "chains", "bonds"))
    is_version_2 = "connections" not in tables
    links = bonds[:0] if is_version_2 else tables["connections"]
    chain_of_residue = _owners(residues, chains["res_idx"], chains["res_num"])
    residue_of_atom = _owners(atoms, residues["atom_idx"], residues["atom_num"])
    size, chain = len(atoms), chain_of_residue[residue_of_atom]
    pairs = [
        np.stack([table["atom_1"], table["atom_2"], kinds], 1).astype(np.int64)
        for table, kinds in ((bonds, bonds["type"] % _COVALENT), (links, np.zeros(len(links))))
    ]
    name = residues["name"][residue_of_atom]
    if is_version_2:
        atom_names, molecules = atoms["name"].tolist(), None
        element, charge = _dictionary_columns(name.tolist(), atom_names, components)
    else:
        atom_names = [_text(row) for row in atoms["name"]]
        element, charge = np.array(["", *ELEMENTS])[atoms["element"]], atoms["charge"]
    section = array_section(
        "boltz",
        {
            "chain_id": chains["name"][chain],
            "res_name": name,
            "ins_code": np.full(size, ""),
            "res_id": residues["res_idx"][residue_of_atom],
            "atom_name": atom_names,
            "element": element,
            "charge": charge,
            "hetero": np.zeros(size, bool),
        },
        np.concatenate(pairs),
        atoms["is_present"].astype(bool),
        [chains["name"][[*pair]].tolist() for pair in tables["interfaces"][["chain_1", "chain_2"]]],
        chain_type=chains["mol_type"][chain],
        chain_entity=chains["entity_id"][chain],
    )
    section = dataclasses.replace(section, chain_valid=tables["mask"].astype(bool))
    listed = [metadata["chains"][row] for row in range(len(chains))]
    if not is_version_2:
        molecules = reference_molecules(section, atoms["element"], charge, atoms["conformer"])
    return build_target(
        section,
        str(metadata["id"]),
        atoms["coords"],
        metadata["structure"],
        [(queries.get(str(chain["msa_id"])), chain["cluster_id"]) for chain in listed],
        offset=-1,
        molecules=molecules,
    )


def _dictionary_columns(
    residues: Sequence[str], atoms: Sequence[str], components: ComponentTable
) -> tuple[np.ndarray, np.ndarray]:
    """Element and charge of every atom, by residue and the first four letters of the atom name."""
    rows = {
        name: {atom[:4]: row for atom, row in reversed(components[name].rows.items())}
        for name in set(residues)
    }
    pairs = [*zip(residues, atoms, strict=True)]
    if missing := [pair for pair in pairs if pair[1] not in rows[pair[0]]]:
        raise ValueError(f"the dictionary's {missing[0][0]} has no atom {missing[0][1]}")
    matches = [(components[name], rows[name][atom]) for name, atom in pairs]
    charges = np.array([component.charge[row] for component, row in matches])
    return np.array([component.element[row] for component, row in matches]), charges


def _owners(rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Index of the owner of every row.

    Raises:
        ValueError: the owners' rows are not contiguous.
    """
    ends = offsets(counts)
    if not np.array_equal(ends[:-1], starts) or ends[-1] != len(rows):
        raise ValueError("rows are not contiguous")
    return np.repeat(np.arange(len(counts)), counts)


def _text(codes: np.ndarray) -> str:
    return "".join(chr(code + 32) for code in codes.tolist() if code)

"""Boltz's prepared set -> records: `manifest.json`, `structures/*.npz` and `msa/*.npz` as they are.

A structure has Boltz's own cleaning behind it, so its section is exact and the other projects have
none. Chains of the assembly stand as chains of the file; what Boltz left out is not in its tables.
Layout: Boltz's `data/types.py`, version 1 (structured arrays).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import InputError
from evofeed.featurize.entries.targets import (
    PreparedSet,
    Target,
    array_section,
    conformers_of,
    target_of,
)
from evofeed.protein.entry_record import offsets
from evofeed.protein.molecules import ELEMENTS


def boltz_set(place: str | Path, alignments: str) -> PreparedSet | None:
    """The targets in a folder; None if there are none.

    Raises:
        InputError: the manifest is none.
    """
    root = Path(place)
    manifest = root / "manifest.json"
    if not manifest.is_file() or not (root / "structures").is_dir():
        return None
    try:
        read = json.loads(manifest.read_bytes())
        records = read["records"] if isinstance(read, dict) else read
        items = []
        for record in records:
            ids = sorted({str(c["msa_id"]) for c in record["chains"] if _has_rows(c["msa_id"])})
            rows = [str(Path(alignments or root / "msa") / f"{one}.npz") for one in ids]
            path = str(root / "structures" / f"{record['id']}.npz")
            items.append((str(record["id"]), path, json.dumps(record), *rows))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"no manifest of Boltz: {error!r}", path=str(manifest)) from None
    beside = root / "msa"
    return PreparedSet("boltz", items, alignments or (str(beside) if beside.is_dir() else ""))


def _has_rows(msa_id: Any) -> bool:
    return msa_id not in ("", None, -1, "-1")


def boltz_target(
    about: Mapping[str, Any], tables: Mapping[str, np.ndarray], queries: Mapping[str, str]
) -> Target:
    """A structure's tables, its entry of the manifest, and queries of its alignments."""
    names = ("atoms", "residues", "chains", "connections")
    atoms, residues, chains, links = (tables[name] for name in names)
    of_chain = _owners(residues, chains["res_idx"], chains["res_num"])
    of_atom = _owners(atoms, residues["atom_idx"], residues["atom_num"])
    size, chain = len(atoms), of_chain[of_atom]
    pairs = [
        np.stack([one["atom_1"], one["atom_2"], kind], 1).astype(np.int64)
        for one, kind in ((tables["bonds"], tables["bonds"]["type"]), (links, np.zeros(len(links))))
    ]
    section = array_section(
        "boltz",
        {
            "chain_id": chains["name"][chain],
            "res_name": residues["name"][of_atom],
            "ins_code": np.full(size, ""),
            "res_id": residues["res_idx"][of_atom],
            "atom_name": [_text(row) for row in atoms["name"]],
            "element": np.array(["", *ELEMENTS])[atoms["element"]],
            "charge": atoms["charge"],
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
    return target_of(
        section,
        str(about["id"]),
        atoms["coords"],
        about["structure"],
        [(queries.get(str(one["msa_id"])), one["cluster_id"]) for one in own],
        before=-1,
        molecules=conformers_of(section, atoms["element"], atoms["charge"], atoms["conformer"]),
    )


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

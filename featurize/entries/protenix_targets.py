"""Protenix's prepared set -> records: `indices/*.csv` and `mmcif_bioassembly/<entry>.pkl.gz`.

Atoms, reference conformers, interfaces and clusters are Protenix's own. Pickles build arrays and
plain values alone. Layout: Protenix 2.0, `scripts/prepare_training_data.py`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.featurize.entries.targets import (
    PreparedSet,
    Target,
    array_section,
    conformers_of,
    target_of,
)
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Inert
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.protein.molecules import element_numbers

_TYPES: Final = {"protein": 0, "dna": 1, "rna": 2, "ligand": 3}


def protenix_set(place: str, alignments: str) -> PreparedSet | None:
    """The set in a folder; None if there is none.

    Raises:
        InputError: its list is none.
    """
    root = Path(place)
    folder = next((p for p in sorted(root.glob("*bioassembly*")) if p.is_dir()), None)
    lists = sorted([*root.glob("indices/*.csv*"), *root.glob("*indices*.csv*")])
    if folder is None or not lists:
        return None
    found: dict[str, dict[str, Any]] = {}
    for table in lists:
        try:
            for row in csv.DictReader(io.StringIO(read_bytes(file_ref(table)).decode())):
                known: dict[str, Any] = {"near": [], "clusters": {}}
                about = found.setdefault(row["pdb_id"], known)
                about["release_date"] = row["release_date"]
                pair = [row["chain_1_id"], row.get("chain_2_id")]
                if row["type"] == "interface" and pair not in about["near"]:
                    about["near"].append(pair)
                cluster = row.get("cluster_1_id") or row["cluster_id"]
                if row["type"] == "chain" and row["mol_1_type"] in ("prot", "nuc"):
                    about["clusters"][row["entity_1_id"]] = cluster
        except TABLE_ERRORS as error:
            raise InputError(f"no list of Protenix: {error!r}", path=str(table)) from None
    items: list[tuple[str, ...]] = []
    for entry, about in found.items():
        items.append((entry, str(folder / f"{entry}.pkl.gz"), json.dumps(about)))
    rows = alignments or (place if any(root.glob("*msa*")) else "")
    templates = root / "mmcif"
    return PreparedSet(
        "protenix", items, rows, templates=str(templates) if templates.is_dir() else ""
    )


def protenix_target(
    about: dict[str, Any], whole: Mapping[str, Any], _queries: Mapping[str, str]
) -> Target:
    """An entry's dictionary, and what the lists say of it."""
    array = vars(whole["atom_array"])
    notes, position = array["_annot"], array["_coord"]
    kinds = np.array([_TYPES[name] for name in notes["chain_mol_type"].tolist()])
    section = array_section(
        "protenix",
        notes,
        _bonds(array["_bonds"]),
        np.asarray(notes["is_resolved"]).astype(bool),
        about["near"],
        chain_type=kinds,
        chain_entity=notes["entity_id_int"],
        chain_copy=notes["sym_id_int"],
        chain_number=notes["asym_id_int"],
    )
    numbers = notes["entity_id_int"].tolist()
    names = dict(zip(numbers, notes["label_entity_id"].tolist(), strict=True))
    own = [names[number] for number in section.chain_entity.tolist()]
    elements = element_numbers(section.atom_element)
    return target_of(
        section,
        str(whole["pdb_id"]),
        position,
        {**about, "resolution": whole["resolution"]},
        [(whole["sequences"].get(name), about["clusters"].get(name)) for name in own],
        names=names,
        polymers={key: whole["entity_poly_type"].get(name, "") for key, name in names.items()},
        occupancy=notes.get("occupancy"),
        molecules=conformers_of(
            section, elements, notes["ref_charge"], notes["ref_pos"], notes["ref_mask"]
        ),
    )


def _bonds(found: Inert) -> np.ndarray:
    """biotite's bonds: an attribute of today's class, in the state of an earlier one."""
    state = vars(found).get("state", vars(found).values())
    return next(one for one in state if isinstance(one, np.ndarray) and one.ndim == 2)

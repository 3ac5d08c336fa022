"""Protenix's prepared set -> records: `indices/*.csv` and `mmcif_bioassembly/<entry>.pkl.gz`.

Atoms, reference conformers, interfaces and clusters are Protenix's own. Pickles can build only
arrays and plain values. Layout: Protenix 2.0, `scripts/prepare_training_data.py`.
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
    build_target,
    reference_molecules,
)
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Inert
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.protein.molecules import element_numbers

_TYPES: Final = {"protein": 0, "dna": 1, "rna": 2, "ligand": 3}


def protenix_set(path: str, alignments: str) -> PreparedSet | None:
    """The set in a folder; None if there is none.

    Raises:
        InputError: one of its lists is damaged.
    """
    root = Path(path)
    folder = next((p for p in sorted(root.glob("*bioassembly*")) if p.is_dir()), None)
    tables = sorted([*root.glob("indices/*.csv*"), *root.glob("*indices*.csv*")])
    if folder is None or not tables:
        return None
    entries: dict[str, dict[str, Any]] = {}
    for table in tables:
        try:
            for row in csv.DictReader(io.StringIO(read_bytes(file_ref(table)).decode())):
                empty: dict[str, Any] = {"interfaces": [], "clusters": {}}
                metadata = entries.setdefault(row["pdb_id"], empty)
                metadata["release_date"] = row["release_date"]
                pair = [row["chain_1_id"], row.get("chain_2_id")]
                if row["type"] == "interface" and pair not in metadata["interfaces"]:
                    metadata["interfaces"].append(pair)
                cluster = row.get("cluster_1_id") or row["cluster_id"]
                if row["type"] == "chain" and row["mol_1_type"] in ("prot", "nuc"):
                    metadata["clusters"][row["entity_1_id"]] = cluster
        except TABLE_ERRORS as error:
            raise InputError(f"not a list of Protenix: {error!r}", path=str(table)) from None
    items: list[tuple[str, ...]] = []
    for entry, metadata in entries.items():
        items.append((entry, str(folder / f"{entry}.pkl.gz"), json.dumps(metadata)))
    alignment_folder = alignments or (path if any(root.glob("*msa*")) else "")
    templates = root / "mmcif"
    return PreparedSet(
        "protenix", items, alignment_folder, templates=str(templates) if templates.is_dir() else ""
    )


def protenix_target(
    metadata: dict[str, Any], tables: Mapping[str, Any], _queries: Mapping[str, str]
) -> Target:
    """The target of an entry's dictionary, with its rows in the lists."""
    array = vars(tables["atom_array"])
    columns, position = array["_annot"], array["_coord"]
    kinds = np.array([_TYPES[name] for name in columns["chain_mol_type"].tolist()])
    section = array_section(
        "protenix",
        columns,
        _bonds(array["_bonds"]),
        np.asarray(columns["is_resolved"]).astype(bool),
        metadata["interfaces"],
        chain_type=kinds,
        chain_entity=columns["entity_id_int"],
        chain_copy=columns["sym_id_int"],
        chain_number=columns["asym_id_int"],
    )
    numbers = columns["entity_id_int"].tolist()
    names = dict(zip(numbers, columns["label_entity_id"].tolist(), strict=True))
    entities = [names[number] for number in section.chain_entity.tolist()]
    elements = element_numbers(section.atom_element)
    return build_target(
        section,
        str(tables["pdb_id"]),
        position,
        {**metadata, "resolution": tables["resolution"]},
        [(tables["sequences"].get(name), metadata["clusters"].get(name)) for name in entities],
        names=names,
        polymers={key: tables["entity_poly_type"].get(name, "") for key, name in names.items()},
        occupancy=columns.get("occupancy"),
        molecules=reference_molecules(
            section, elements, columns["ref_charge"], columns["ref_pos"], columns["ref_mask"]
        ),
    )


def _bonds(bond_list: Inert) -> np.ndarray:
    """biotite's bonds, an attribute or, of earlier versions, in the pickled state."""
    state = vars(bond_list).get("state", vars(bond_list).values())
    return next(value for value in state if isinstance(value, np.ndarray) and value.ndim == 2)

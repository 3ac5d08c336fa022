"""Entries of a dataset as the set that Boltz trains on: its own tables, by its own rules.

python experiments/boltz_training_set/write_set.py data/ boltz_set/

For its `data/module/training.py`, `boltz_set/` is `target_dir` and `boltz_set/msa` is `msa_dir`.
Tables are version 1 of its `data/types.py`; chirality, which its featurizer does not read, is 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import ChainMissing
from evofeed.loader.views.boltz.rows import CODES, distinct_rows
from evofeed.loader.views.columns import (
    name_codes,
    present_residues,
    representative_atoms,
    residue_codes,
    split_tokens,
)
from evofeed.protein.alignment import Alignment
from evofeed.protein.datapoints import alignment_names
from evofeed.protein.entry_record import LIGAND, EntryRecord
from evofeed.protein.molecules import Molecule, element_numbers, molecule
from evofeed.protein.ruleset_section import RulesetSection, copies_of, placed
from evofeed.store import Dataset

MOST_ROWS = 16_384  # as many as Boltz prepares of an alignment
COLUMNS = {
    "atoms": "name:4i1 element:i1 charge:i1 coords:3f4 conformer:3f4 is_present:? chirality:i1",
    "bonds": "atom_1:i4 atom_2:i4 type:i1",
    "residues": "name:U5 res_type:i1 res_idx:i4 atom_idx:i4 atom_num:i4 atom_center:i4 "
    "atom_disto:i4 is_standard:? is_present:?",
    "chains": "name:U5 mol_type:i1 entity_id:i4 sym_id:i4 asym_id:i4 atom_idx:i4 atom_num:i4 "
    "res_idx:i4 res_num:i4 cyclic_period:i4",
    "connections": "chain_1:i4 chain_2:i4 res_1:i4 res_2:i4 atom_1:i4 atom_2:i4",
    "interfaces": "chain_1:i4 chain_2:i4",
    "sequences": "seq_idx:i2 taxonomy:i4 res_start:i4 res_end:i4 del_start:i4 del_end:i4",
    "deletions": "res_idx:i2 deletion:i2",
    "codes": "res_type:i1",
}


def main(uri: str, out: str) -> list[str]:
    """Write the entries that Boltz takes, their clusters and their proteins' alignments."""
    to, entries = Path(out), Dataset.open(uri).entries
    for folder in ("structures", "msa"):
        (to / folder).mkdir(parents=True, exist_ok=True)
    points = [one for one in entries.datapoints.to_pylist() if one["project"] == "boltz"]
    clusters = {(one["entry"], one["chain_a"]): one["cluster_a"] for one in points}
    molecules, taxa, width, records = entries.molecules("boltz"), {}, {}, []
    for number, name in enumerate(entries):
        try:
            record, section = entries[name], entries.section(name, "boltz")
        except ChainMissing as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            continue
        tables = structure_tables(record, section, molecules)
        np.savez_compressed(to / f"structures/{name}.npz", mask=section.chain_valid, **tables)
        named, chains = alignment_names(record, section), []
        for row, chain in enumerate(tables["chains"]):
            msa = named.get(int(chain["entity_id"]), "") if chain["mol_type"] == 0 else ""
            if msa not in width:
                width[msa] = save_rows(entries, msa, to, taxa)
            msa = msa if width[msa] == chain["res_num"] else ""
            chains.append(about_chain(row, chain, section, clusters.get((number, row), ""), msa))
        records.append(about_entry(name, record, section, chains))
    (to / "manifest.json").write_text(json.dumps({"records": records}))
    return [one["id"] for one in records]


def structure_tables(
    record: EntryRecord, section: RulesetSection, molecules: Mapping[str, Molecule]
) -> dict[str, np.ndarray]:
    """A structure's tables."""
    names, bounds = section.residue_name.tolist(), section.residue_atom
    chain, residue = section.atom_chain(), section.atom_residue()
    present, first = section.atom_row >= 0, section.chain_residue[:-1]
    operator = section.chain_operator[chain]
    place = placed(record.atom_position[section.atom_row], operator, record.operators, single=False)
    conformer = []
    for name, low, high in zip(names, bounds, bounds[1:], strict=False):
        known = molecule(molecules, name)
        conformer.append(known.position[0][known.rows_of(name, section.atom_name[low:high])])
    codes = residue_codes(section.residue_name)
    standard = (codes >= 0) & (section.chain_type[chain[bounds[:-1]]] != LIGAND)
    whole = split_tokens(section, np.ones(len(names), bool))
    representatives = representative_atoms(section, standard, whole)
    within = np.equal(*residue[section.bond_atom].T)
    one, two = section.bond_atom[~within].T
    return tables_of(
        atoms=(name_codes(section.atom_name), element_numbers(section.atom_element),
               section.atom_charge, np.where(present[:, None], place, 0),
               np.concatenate(conformer), present),
        bonds=(*section.bond_atom[within].T, section.bond_type[within]),
        residues=(names, np.where(standard, codes, 20) + 2, section.residue_index, bounds[:-1],
                  np.diff(bounds), *representatives, standard, present_residues(present, bounds)),
        chains=(section.chain_name, section.chain_type, section.chain_entity,
                copies_of(section.chain_entity), np.arange(len(first)), bounds[first],
                np.diff(bounds[section.chain_residue]), first, np.diff(section.chain_residue)),
        connections=(chain[one], chain[two], residue[one], residue[two], one, two),
        interfaces=section.interface.T,
    )  # fmt: skip


def save_rows(entries: Any, name: str, to: Path, taxa: dict[str, int]) -> int:
    """Write an alignment; its columns, 0 if the dataset has none of that name."""
    try:
        alignment: Alignment = entries.alignment(name)
    except ChainMissing:
        return 0
    rows, width = distinct_rows(alignment, MOST_ROWS), alignment.num_columns
    numbers = [
        int(one) if one.isdecimal() else taxa.setdefault(one, 10**9 + len(taxa))
        for one in alignment.species
    ]
    taxon = np.array([*numbers, -1])[alignment.row_species[rows]]
    counts = np.diff(alignment.deletion_start)[rows]
    stop, end = np.cumsum(counts), np.arange(1, len(rows) + 1) * width
    cells = np.repeat(alignment.deletion_start[rows] - stop + counts, counts)
    cells = cells + np.arange(len(cells))
    deleted = np.minimum(alignment.deletion_count[cells], 2**15 - 1)
    tables = tables_of(
        sequences=(np.arange(len(rows)), taxon, end - width, end, stop - counts, stop),
        deletions=(alignment.deletion_column[cells], deleted),
        codes=(CODES[alignment.letters[alignment.row_letters[rows]]].reshape(-1),),
    )
    tables["residues"] = tables.pop("codes")
    np.savez_compressed(to / f"msa/{name}.npz", **tables)  # type: ignore[arg-type]
    return width


def tables_of(**values: Any) -> dict[str, np.ndarray]:
    """Structured arrays; columns without values are zeros."""
    tables = {}
    for name, columns in values.items():
        kinds = np.dtype([tuple(one.split(":")) for one in COLUMNS[name].split()])
        tables[name] = np.zeros(len(columns[0]), kinds)
        for column, value in zip(kinds.names or (), columns, strict=False):
            tables[name][column] = value
    return tables


def about_chain(
    row: int, chain: Any, section: RulesetSection, cluster: str, msa: str
) -> dict[str, Any]:
    """What the manifest says of a chain."""
    return {
        "chain_id": row,
        "chain_name": str(chain["name"]),
        "mol_type": int(chain["mol_type"]),
        "cluster_id": cluster,
        "msa_id": msa,
        "num_residues": int(chain["res_num"]),
        "valid": bool(section.chain_valid[row]),
        "entity_id": int(chain["entity_id"]),
    }


def about_entry(
    name: str, record: EntryRecord, section: RulesetSection, chains: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the manifest says of an entry."""
    valid, dates = section.chain_valid.tolist(), record.release_dates or ("",)
    structure = {
        "resolution": float(np.nan_to_num(record.resolution())),
        "method": ",".join(record.methods).lower(),
        "deposited": record.deposit_date,
        "released": dates[0],
        "revised": dates[-1],
        "num_chains": len(chains),
        "num_interfaces": len(section.interface),
    }
    near = [
        {"chain_1": one, "chain_2": two, "valid": valid[one] and valid[two]}
        for one, two in section.interface.tolist()
    ]
    return {"id": name, "structure": structure, "chains": chains, "interfaces": near}


if __name__ == "__main__":
    print(f"{len(main(*sys.argv[1:]))} entries")

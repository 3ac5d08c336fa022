"""Chain records written as Boltz, OpenFold3 and Protenix publish their training sets.

The layouts follow those projects' own writers: `scripts/process/{rcsb,msa}.py` of Boltz,
`write_atomarray_to_npz` and `preparse_alignments_of3.py` of OpenFold3, and
`scripts/prepare_training_data.py` of Protenix. Their packages are not needed.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.featurize.entries.boltz_set import ROWS, TABLES

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_TYPES, GAP, RESTYPE_3, RESTYPES

THREE = (*RESTYPE_3, "UNK")
LETTERS = RESTYPES + "X-"
_BOLTZ_CODE = np.array([*range(2, 22), 22, 1], np.int8)
"""Boltz's token of each of our codes: the twenty from 2, unknown 22, gap 1."""


def atoms_of(record: ChainRecord) -> tuple[np.ndarray, np.ndarray]:
    """Residue and atom37 slot of each resolved atom, residue by residue."""
    assert record.all_atom_mask is not None
    found = np.nonzero(record.all_atom_mask)
    return found[0], found[1]


def a3m_rows(record: ChainRecord) -> list[str]:
    """Rows as a3m text, `x` for what was inserted."""
    rows = []
    for codes, gone in zip(record.msa, record.deletion_matrix(), strict=True):
        rows.append("".join("x" * n + LETTERS[c] for c, n in zip(codes, gone, strict=True)))
    return rows


# Boltz


def write_boltz(root: Path, records: Sequence[ChainRecord]) -> Path:
    """`targets/` with manifest and structures, `msa/` beside it; an entry a record."""
    (root / "rcsb_processed_targets" / "structures").mkdir(parents=True)
    (root / "rcsb_processed_msa").mkdir()
    manifest = []
    for number, record in enumerate(records):
        entry = record.chain_id.rpartition("_")[0]
        structure = root / "rcsb_processed_targets" / "structures" / f"{entry}.npz"
        np.savez_compressed(structure, **_boltz_structure(record))
        np.savez_compressed(root / "rcsb_processed_msa" / f"m{number}.npz", **_boltz_msa(record))
        known = {"resolution": record.resolution, "method": "X-RAY DIFFRACTION"}
        chain = {
            "chain_id": 0,
            "chain_name": "A",
            "mol_type": 0,
            "cluster_id": f"cl{number // 2}",
            "msa_id": f"m{number}",
            "num_residues": record.num_res,
            "valid": True,
            "entity_id": 0,
        }
        manifest.append(
            {
                "id": entry,
                "structure": {**known, "released": record.release_date, "num_chains": 1},
                "chains": [chain],
                "interfaces": [],
            }
        )
    (root / "rcsb_processed_targets" / "manifest.json").write_text(json.dumps(manifest))
    return root


def _boltz_structure(record: ChainRecord) -> dict[str, np.ndarray]:
    residue, slot = atoms_of(record)
    names = np.zeros([len(slot), 4], np.int8)
    for row, number in enumerate(slot):
        name = ATOM_TYPES[number]
        names[row, : len(name)] = [ord(letter) - 32 for letter in name]
    assert record.all_atom_positions is not None
    atoms = np.zeros(len(slot), TABLES["atoms"])
    atoms["name"], atoms["coords"] = names, record.all_atom_positions[residue, slot]
    atoms["is_present"] = True
    counts = np.bincount(residue, minlength=record.num_res)
    residues = np.zeros(record.num_res, TABLES["residues"])
    residues["name"] = [THREE[code] for code in record.aatype]
    residues["res_type"] = record.aatype + 2
    residues["res_idx"] = np.arange(record.num_res)
    residues["atom_num"] = counts
    residues["atom_idx"] = np.cumsum(counts) - counts
    residues["is_standard"], residues["is_present"] = True, counts > 0
    chain = ("A", 0, 0, 0, 0, 0, len(slot), 0, record.num_res, 0)
    return {
        "atoms": atoms,
        "residues": residues,
        "chains": np.array([chain], TABLES["chains"]),
        "mask": np.ones(1, bool),
        **{n: np.zeros(0, TABLES[n]) for n in ("bonds", "connections", "interfaces")},
    }


def _boltz_msa(record: ChainRecord) -> dict[str, np.ndarray]:
    N, L = record.msa.shape
    starts = np.searchsorted(record.deletion_row, np.arange(N + 1))
    sequences = np.zeros(N, ROWS["sequences"])
    sequences["seq_idx"] = np.arange(N)
    sequences["taxonomy"] = np.where(np.arange(N) % 3 == 1, 9606, -1)
    sequences["res_start"], sequences["res_end"] = np.arange(N) * L, np.arange(1, N + 1) * L
    sequences["del_start"], sequences["del_end"] = starts[:-1], starts[1:]
    deletions = np.zeros(len(record.deletion_count), ROWS["deletions"])
    deletions["res_idx"] = record.deletion_column
    deletions["deletion"] = record.deletion_count
    residues = np.zeros(N * L, ROWS["residues"])
    residues["res_type"] = _BOLTZ_CODE[record.msa].reshape(-1)
    return {"sequences": sequences, "deletions": deletions, "residues": residues}


# OpenFold3


def write_openfold3(root: Path, records: Sequence[ChainRecord]) -> Path:
    """A dataset cache, structures and alignment arrays."""
    (root / "alignment_arrays").mkdir(parents=True)
    data = {}
    for record in records:
        entry = record.chain_id.rpartition("_")[0]
        folder = root / "structure_files" / entry
        folder.mkdir(parents=True)
        np.savez_compressed(folder / f"{entry}.npz", **atom_annotations(record, "1"))
        half = max(1, record.num_alignments // 2)
        tables = {
            "mgnify_hits": _openfold3_table(record, slice(0, half)),
            "uniref90_hits": _openfold3_table(record, np.r_[0, half : record.num_alignments]),
        }
        out = root / "alignment_arrays" / f"{entry}_A.npz"
        np.savez_compressed(out, allow_pickle=True, **tables)
        chain = {
            "label_asym_id": "A",
            "auth_asym_id": "A",
            "entity_id": 1,
            "molecule_type": "PROTEIN",
            "alignment_representative_id": f"{entry}_A",
            "template_ids": [],
            "cluster_id": "c",
            "cluster_size": 1,
        }
        ligand = {**chain, "molecule_type": "LIGAND", "alignment_representative_id": None}
        data[entry] = {
            "release_date": record.release_date,
            "resolution": record.resolution,
            "chains": {"1": chain, "2": ligand},
            "interfaces": {},
        }
    cache = {"_type": "ClusteredDatasetCache", "name": "pdb", "structure_data": data}
    (root / "training_cache.json").write_text(json.dumps(cache))
    return root


def atom_annotations(record: ChainRecord, chain: str) -> dict[str, np.ndarray]:
    """Atoms of a record as biotite's annotations; unresolved residues have a CA of NaN."""
    residue, slot = atoms_of(record)
    assert record.all_atom_positions is not None
    empty = np.setdiff1d(np.arange(record.num_res), residue)
    coord = np.concatenate(
        [record.all_atom_positions[residue, slot], np.full([len(empty), 3], np.nan, np.float32)]
    )
    residue = np.concatenate([residue, empty])
    slot = np.concatenate([slot, np.full(len(empty), ATOM_TYPES.index("CA"))])
    order = np.argsort(residue, kind="stable")
    residue, slot, coord = residue[order], slot[order], coord[order]
    return {
        "coord": coord,
        "chain_id": np.full(len(residue), chain),
        "res_id": residue + 1,
        "res_name": np.array(THREE)[record.aatype[residue]],
        "atom_name": np.array(ATOM_TYPES)[slot],
        "molecule_type_id": np.zeros(len(residue), int),
        "b_factor": np.full(len(residue), 80.0),
    }


def _openfold3_table(record: ChainRecord, rows: Any) -> Any:
    msa = np.array(list(LETTERS))[record.msa[rows]]
    names = [f"tr|A{n}|A{n}_{s or 'X'}/1-9" for n, s in enumerate(record.msa_species)]
    table = {
        "msa": msa,
        "deletion_matrix": record.deletion_matrix()[rows],
        "metadata": np.array(names)[rows],
    }
    return np.array(table, object)


# Protenix


@contextmanager
def borrowed_names() -> Iterator[tuple[type, ...]]:
    """Classes by the names of biotite's and Protenix's, for as long as pickles are written."""
    places = {
        "biotite.structure.atoms": "AtomArray",
        "protenix.data.tokenizer": "TokenArray",
        "biotite.structure.bonds": "BondList",
    }
    made = tuple(type(name, (), {"__module__": module}) for module, name in places.items())
    parts = (accumulate(module.split("."), "{}.{}".format) for module in places)
    modules = {part: types.ModuleType(part) for part in chain.from_iterable(parts)}
    for (module, name), one in zip(places.items(), made, strict=True):
        setattr(modules[module], name, one)
    with patch.dict(sys.modules, modules):
        yield made


def write_protenix(root: Path, records: Sequence[ChainRecord]) -> Path:
    """Entries, the list of chains, alignments by number and their index."""
    (root / "mmcif_bioassembly").mkdir(parents=True)
    (root / "indices").mkdir()
    (root / "common").mkdir()
    lines = ["type,pdb_id,cluster_id,release_date,resolution,entity_1_id,chain_1_id,mol_1_type"]
    index = {}
    for number, record in enumerate(records):
        entry = record.chain_id.rpartition("_")[0]
        (root / "mmcif_bioassembly" / f"{entry}.pkl.gz").write_bytes(bioassembly(record, entry))
        folder = root / "mmcif_msa_template" / str(number)
        folder.mkdir(parents=True)
        index[record.sequence] = number
        text = "".join(f">r{n}\n{row}\n" for n, row in enumerate(a3m_rows(record)))
        (folder / "non_pairing.a3m").write_text(text)
        (folder / "pairing.a3m").write_text(f">query\n{record.sequence}\n")
        known = f"{record.release_date},{record.resolution}"
        lines.append(f"chain,{entry},c{number},{known},1,A,prot")
        lines.append(f"interface,{entry},c{number},{known},1,A,prot")
    (root / "indices" / "weightedPDB_indices.csv").write_text("\n".join(lines) + "\n")
    (root / "common" / "seq_to_pdb_index.json").write_text(json.dumps(index))
    return root


def bioassembly(record: ChainRecord, entry: str) -> bytes:
    """A `.pkl.gz` of Protenix."""
    notes = atom_annotations(record, "A")
    coord = notes.pop("coord")
    notes["is_resolved"] = np.isfinite(coord).all(-1)
    notes["label_entity_id"] = np.full(len(coord), "1")
    with borrowed_names() as (array_class, token_class, _bonds):
        array, tokens = array_class(), token_class()
        array.__dict__.update(_coord=np.nan_to_num(coord), _annot=notes, _bonds=None)
        tokens.__dict__["tokens"] = list(range(record.num_res))
        whole = {
            "pdb_id": entry,
            "sequences": {"1": record.sequence},
            "entity_poly_type": {"1": "polypeptide(L)", "2": "polydeoxyribonucleotide"},
            "release_date": record.release_date,
            "resolution": record.resolution or -1,
            "atom_array": array,
            "token_array": tokens,
            "msa_features": None,
        }
        return gzip.compress(pickle.dumps(whole))


assert LETTERS[GAP] == "-"

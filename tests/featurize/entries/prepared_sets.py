"""Recorded structures and alignments written as the prepared sets of the all-atom projects."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from tests.conftest import own_packages
from tests.loader.views.boltz_recorded import read_a3m
from tests.loader.views.openfold3_recorded import SOURCES
from tests.loader.views.packs import openfold3_cache, read

from evofeed.featurize.formats.a3m import parse_a3m

_LATER = ("is_atomized", "token_id", "token_center_atom", "token_position", "component_id",
          "crop_mask", "atom_name_unique")  # fmt: skip
"""Annotations that a sample of OpenFold3 adds."""


def write_openfold3_set(folder: Path, pack: Path, entries: Sequence[str]) -> Path:
    """A cache for training, structures and arrays of alignments."""
    caches = openfold3_cache(pack)
    cache, others = caches["training_cache"], caches["metadata"]["structure_data"]
    structures = {entry: cache["structure_data"].get(entry, others[entry]) for entry in entries}
    (folder / "alignment_arrays").mkdir(parents=True)
    for entry, metadata in structures.items():
        arrays = read(pack / "openfold3" / "structure" / f"{entry}.npz", "atom.").arrays
        columns = {k: v for k, v in arrays.items() if k not in _LATER and not k.startswith("mol_")}
        home = folder / "structure_files" / entry
        home.mkdir(parents=True)
        np.savez_compressed(home / f"{entry}.npz", **columns)
        names = {chain.get("alignment_representative_id") for chain in metadata["chains"].values()}
        for name in sorted(names - {None}):
            tables = {
                source: np.array(_rows(text), object)
                for source, text in openfold3_texts(pack, name).items()
            }
            file = folder / "alignment_arrays" / f"{name}.npz"
            np.savez_compressed(file, allow_pickle=True, **tables)
    training_cache = {**cache, "structure_data": structures}
    (folder / "training_cache.json").write_text(json.dumps(training_cache))
    return folder


def openfold3_texts(pack: Path, representative: str) -> dict[str, str]:
    """a3m of a representative by source, the query replaced by the entry's own sequence."""
    stands_for = openfold3_cache(pack)["alignment_of_representative"][representative]
    table = json.loads((pack / "inputs" / "msa" / "index.json").read_text())
    query = table.get(representative, table[stands_for])["sequence"]
    files = sorted((pack / "inputs" / "msa" / stands_for).glob("*.a3m"))
    return {SOURCES[file.stem]: with_query(file, query) for file in files}


def write_inputs(
    folder: Path, pack: Path, entries: Sequence[str], name_of: Callable[[str], str] = str
) -> str:
    """mmCIF files in `cif`, OpenFold3's rows in `msa`, by source; the table of the clusters."""
    structures = openfold3_cache(pack)["training_cache"]["structure_data"]
    clusters = []
    (folder / "cif").mkdir()
    for entry in entries:
        file = pack / "inputs" / "mmcif" / f"{entry}.cif.gz"
        (folder / "cif" / file.name).write_bytes(file.read_bytes())
        for chain in structures[entry]["chains"].values():
            clusters.append(f"{chain['cluster_id']}\t{entry.upper()}_{chain['entity_id']}\n")
            if name := chain["alignment_representative_id"]:
                (folder / "msa" / name).mkdir(parents=True, exist_ok=True)
                for source, text in openfold3_texts(pack, name).items():
                    (folder / "msa" / name / f"{name_of(source)}.a3m").write_text(text)
    return "".join(clusters)


def with_query(file: Path, query: str) -> str:
    """An a3m file with another first row."""
    rows = read_a3m(file)
    rows[0] = (rows[0][0], query)
    return "".join(f">{head}\n{body}\n" for head, body in rows)


def _rows(text: str) -> dict[str, Any]:
    msa = parse_a3m(text.encode())
    deletions = np.zeros(msa.letters.shape, int)
    deletions[msa.deletion_row, msa.deletion_column] = msa.deletion_count
    letters = np.char.decode(msa.letters.view("S1"))
    return {"msa": letters, "deletion_matrix": deletions, "metadata": msa.descriptions()}


def write_protenix_set(folder: Path, pack: Path, entries: Sequence[str]) -> Path:
    """Entries, and the list of their chains and interfaces."""
    (folder / "mmcif_bioassembly").mkdir(parents=True)
    (folder / "indices").mkdir()
    rows = []
    for entry in entries:
        meta, arrays = read(pack / "protenix" / "structure" / f"{entry}.npz")
        notes = {k.removeprefix("atom."): v for k, v in arrays.items() if k.startswith("atom.")}
        position, bonds = notes.pop("coord"), notes.pop("bonds")
        with borrowed_names() as (array_class, token_class, bond_class):
            array, tokens, table = array_class(), token_class(), bond_class()
            vars(table).update(_atom_count=len(position), _bonds=bonds, _max_bonds_per_atom=4)
            vars(array).update(_annot=notes, _coord=position, _bonds=table, _box=None)
            vars(array)["_array_length"] = len(position)
            vars(tokens)["tokens"] = arrays["token.value"].tolist()
            data = {**meta["other"], "atom_array": array, "token_array": tokens}
            file = folder / "mmcif_bioassembly" / f"{entry}.pkl.gz"
            file.write_bytes(gzip.compress(pickle.dumps(data), 1))
        rows += meta["indices"]
    with (folder / "indices" / "weightedPDB_indices.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@contextmanager
def borrowed_names() -> Iterator[tuple[type, ...]]:
    """Classes with the names of biotite's and Protenix's, while pickles are written."""
    classes = {
        "biotite.structure.atoms": "AtomArray",
        "protenix.data.tokenizer": "TokenArray",
        "biotite.structure.bonds": "BondList",
    }
    created = tuple(type(name, (), {"__module__": module}) for module, name in classes.items())
    parts = (itertools.accumulate(module.split("."), "{}.{}".format) for module in classes)
    modules = {part: types.ModuleType(part) for part in itertools.chain.from_iterable(parts)}
    for (module, name), class_ in zip(classes.items(), created, strict=True):
        setattr(modules[module], name, class_)
    with patch.dict(sys.modules, modules):
        yield created


def _columns(text: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (column.partition(":") for column in text.split())]


_TABLES = yaml.safe_load(Path(__file__).with_name("boltz_tables.yaml").read_text())
TABLES, VERSION_2, ROWS = (
    {name: _columns(text) for name, text in _TABLES[part].items()}
    for part in ("first", "second", "rows")
)
_UNUSED = (
    *("pytorch_lightning", "pytorch_lightning.callbacks", "pytorch_lightning.strategies"),
    *("pytorch_lightning.utilities", "boltz.model.models.boltz1", "boltz.model.models.boltz2"),
)
"""Modules that Boltz imports for seconds, of which it needs only names to read inputs."""


def boltz_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Boltz importable without its models."""
    own_packages(monkeypatch, "boltz")
    for name in _UNUSED:
        if name not in sys.modules:
            module = mock.MagicMock(__path__=[], rank_zero_only=lambda function: function)
            monkeypatch.setitem(sys.modules, name, module)


def write_set(folder: Path, pack: Path, entries: Sequence[str]) -> Path:
    """`manifest.json`, `structures/` and `msa/` of these entries."""
    records = []
    for part in ("structures", "msa"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for entry in entries:
        meta, arrays = read(pack / "boltz" / "structure" / f"{entry}.npz")
        tables = {name: _table(arrays, f"structure.{name}.", TABLES[name]) for name in TABLES}
        np.savez(folder / "structures" / f"{entry}.npz", mask=arrays["structure.mask"], **tables)
        records.append(meta["record"])
        for msa_id in {chain["msa_id"] for chain in meta["record"]["chains"]} - {""}:
            arrays = read(pack / "boltz" / "msa" / f"{msa_id}.npz").arrays
            rows = {name: _table(arrays, f"{name}.", ROWS[name]) for name in ROWS}
            np.savez_compressed(folder / "msa" / f"{msa_id}.npz", **rows)
    (folder / "manifest.json").write_text(json.dumps({"records": records}))
    return folder


def as_version_2(file: Path) -> None:
    """A structure in version 2: no elements, charges and conformers, links among bonds."""
    with np.load(file) as members:
        tables = dict(members)
    atoms, links = tables.pop("atoms"), tables.pop("connections")
    names = ["".join(chr(code + 32) for code in name if code) for name in atoms["name"].tolist()]
    values = {"name": names, "coords": atoms["coords"], "is_present": atoms["is_present"]}
    links = {name: links[name] for name in ("atom_1", "atom_2")} | {"type": np.full(len(links), 5)}
    parts = [tables.pop("bonds"), links]
    bonds = {n: np.concatenate([table[n] for table in parts]) for n in ("atom_1", "atom_2", "type")}
    size = {"atom_coord_idx": [0], "atom_num": [len(atoms)]}
    contents = (values, bonds, {"coords": atoms["coords"]}, size)
    for (name, columns), table in zip(VERSION_2.items(), contents, strict=True):
        filled = {
            column: np.zeros(len(next(iter(table.values())))) for column, _ in columns
        } | table
        tables[name] = _table(filled, "", columns)
    np.savez(file, **tables)


def _table(
    arrays: dict[str, np.ndarray], prefix: str, columns: Sequence[tuple[str, str]]
) -> np.ndarray:
    size = len(arrays[prefix + columns[0][0]])
    table = np.zeros(size, np.dtype([(name, np.dtype(kind)) for name, kind in columns]))
    for name, _ in columns:
        table[name] = arrays[prefix + name]
    return table

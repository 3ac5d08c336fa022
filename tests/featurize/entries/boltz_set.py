"""A recorded structure and alignment of Boltz's, written as its prepared set has them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml
from tests.conftest import own_packages
from tests.loader.views.packs import read


def _columns(text: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (one.partition(":") for one in text.split())]


_KNOWN = yaml.safe_load(Path(__file__).with_name("boltz_tables.yaml").read_text())
TABLES, SECOND, ROWS = (
    {name: _columns(text) for name, text in _KNOWN[part].items()}
    for part in ("first", "second", "rows")
)
_UNUSED = (
    *("pytorch_lightning", "pytorch_lightning.callbacks", "pytorch_lightning.strategies"),
    *("pytorch_lightning.utilities", "boltz.model.models.boltz1", "boltz.model.models.boltz2"),
)
"""What Boltz imports for seconds and needs the names of alone, where it reads inputs."""


def boltz_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boltz, but for its models, can be imported."""
    own_packages(monkeypatch, "boltz")
    for name in _UNUSED:
        if name not in sys.modules:
            made = mock.MagicMock(__path__=[], rank_zero_only=lambda function: function)
            monkeypatch.setitem(sys.modules, name, made)


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
        for one in {chain["msa_id"] for chain in meta["record"]["chains"]} - {""}:
            arrays = read(pack / "boltz" / "msa" / f"{one}.npz").arrays
            rows = {name: _table(arrays, f"{name}.", ROWS[name]) for name in ROWS}
            np.savez_compressed(folder / "msa" / f"{one}.npz", **rows)
    (folder / "manifest.json").write_text(json.dumps({"records": records}))
    return folder


def as_second(file: Path) -> None:
    """A structure as version 2 has it: no elements, charges and conformers, links among bonds."""
    with np.load(file) as members:
        first = dict(members)
    atoms, links = first.pop("atoms"), first.pop("connections")
    names = ["".join(chr(code + 32) for code in one if code) for one in atoms["name"].tolist()]
    values = {"name": names, "coords": atoms["coords"], "is_present": atoms["is_present"]}
    links = {name: links[name] for name in ("atom_1", "atom_2")} | {"type": np.full(len(links), 5)}
    parts = [first.pop("bonds"), links]
    bonds = {n: np.concatenate([one[n] for one in parts]) for n in ("atom_1", "atom_2", "type")}
    size = {"atom_coord_idx": [0], "atom_num": [len(atoms)]}
    given = (values, bonds, {"coords": atoms["coords"]}, size)
    for (name, columns), one in zip(SECOND.items(), given, strict=True):
        whole = {column: np.zeros(len(next(iter(one.values())))) for column, _ in columns} | one
        first[name] = _table(whole, "", columns)
    np.savez(file, **first)


def _table(
    arrays: dict[str, np.ndarray], prefix: str, columns: Sequence[tuple[str, str]]
) -> np.ndarray:
    size = len(arrays[prefix + columns[0][0]])
    table = np.zeros(size, np.dtype([(name, np.dtype(kind)) for name, kind in columns]))
    for name, _ in columns:
        table[name] = arrays[prefix + name]
    return table

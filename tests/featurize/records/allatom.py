"""Inputs of the recorded all-atom packs: records, components and reference molecules."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.views.packs import _openfold3_molecules, openfold3_cache, read

from evofeed.featurize.records.entry import entry_record
from evofeed.featurize.structures.components import read_components
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection


@functools.lru_cache(maxsize=2)
def components(pack: Path) -> ComponentTable:
    """The pack's dictionary of components."""
    return read_components(next((pack / "components").glob("components.cif*")))


@functools.lru_cache(maxsize=4)
def record(pack: Path, entry: str) -> EntryRecord:
    """The record of an entry's mmCIF file."""
    path = pack / "inputs" / "mmcif" / f"{entry}.cif.gz"
    return entry_record(gzip.decompress(path.read_bytes()), path=str(path))


def differing(
    view: Any, expected: Any, *, skipped: tuple[str, ...], unordered: tuple[str, ...] = ()
) -> list[str]:
    """Fields of two views that differ (coordinates by over 1e-5 Å), without `skipped` prefixes."""
    wrong = []
    for name in type(view).__dataclass_fields__:
        own, other = getattr(view, name), getattr(expected, name)
        if name.startswith(skipped):
            continue
        if name == "atom_position":
            is_equal = np.allclose(own, other, rtol=0, atol=1e-5, equal_nan=True)
        elif name in unordered:
            is_equal = sorted(own.tolist()) == sorted(other.tolist())
        elif name == "resolution":
            is_equal = np.array_equal(
                np.nan_to_num([own], nan=-1.0), np.nan_to_num([other], nan=-1.0)
            )
        else:
            is_equal = np.array_equal(own, other) if isinstance(own, np.ndarray) else own == other
        wrong += [] if is_equal else [name]
    return wrong


def sorted_bonds(atoms: np.ndarray, types: np.ndarray | None = None) -> list[list[int]]:
    """Bonds in one order, with their types where given."""
    columns = [np.sort(atoms.astype(np.int64), 1)]
    columns += [] if types is None else [types.astype(np.int64)[:, None]]
    return sorted(np.concatenate(columns, axis=1).tolist())


def _molecule(tables: Any, name: str, position: np.ndarray, mask: np.ndarray) -> Molecule:
    count = len(tables[f"{name}.name"])
    return Molecule(
        name=tables[f"{name}.name"],
        element=tables[f"{name}.element"],
        charge=tables[f"{name}.charge"],
        position=position[None].astype(np.float32),
        mask=mask,
        bond=tables[f"{name}.bonds"][:, :2],
        orders=np.arange(count)[None],
    )


def openfold3_molecules(pack: Path) -> dict[str, Molecule]:
    """OpenFold3's recorded reference molecules by name."""
    tables = _openfold3_molecules(pack)
    names = [key.removesuffix(".name") for key in tables if key.endswith(".name")]
    return {n: _molecule(tables, n, tables[f"{n}.pos"], tables[f"{n}.used"]) for n in names}


def boltz_molecules(pack: Path) -> dict[str, Molecule]:
    """The components' conformers that Boltz used, hydrogens left out already."""
    return _conformers(pack, [f"conf.boltz.{kind}" for kind in ("Computed", "Ideal", "Model")], "")


def protenix_molecules(pack: Path) -> dict[str, Molecule]:
    """The components' conformers that Protenix used."""
    return _conformers(pack, ["conf.protenix"], "protenix_ref_mask")


def _conformers(pack: Path, kinds: list[str], mask: str) -> dict[str, Molecule]:
    """Molecules of a pack with the first recorded kind of coordinates; `mask` '' is all atoms."""
    molecules = {}
    with np.load(pack / "components" / "conformers.npz") as tables:
        for name in {key.split(".")[0] for key in tables.files}:
            count = len(tables[f"{name}.name"])
            recorded = [
                tables[f"{name}.{kind}"] for kind in kinds if f"{name}.{kind}" in tables.files
            ]
            resolved = (
                tables.get(f"{name}.{mask}", np.zeros(count)) > 0 if mask else np.ones(count, bool)
            )
            position = recorded[0] if recorded else np.zeros((count, 3))
            molecules[name] = _molecule(tables, name, position, resolved)
    return molecules


def openfold3_alignments(pack: Path, entry: str) -> dict[int, str]:
    """Name of the alignment by entity, of the recorded training cache."""
    cache = openfold3_cache(pack)
    training = cache["training_cache"]["structure_data"].get(entry)
    chains = (training or cache["metadata"]["structure_data"][entry])["chains"].values()
    names = ((chain["entity_id"], chain.get("alignment_representative_id")) for chain in chains)
    return {entity: name for entity, name in names if name}


def boltz_alignments(path: Path, section: RulesetSection) -> dict[int, str]:
    """Name of the alignment by entity, of a structure that Boltz prepared."""
    chains = read(path).meta["record"]["chains"]
    pairs = zip(section.chain_entity.tolist(), chains, strict=True)
    return {entity: chain["msa_id"] for entity, chain in pairs if chain["msa_id"]}

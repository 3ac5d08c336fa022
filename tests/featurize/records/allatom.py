"""Inputs of the recorded all-atom packs: records, components and reference molecules."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

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


class OpenFold3Molecules(dict[str, Molecule]):
    """OpenFold3's recorded reference molecules by name, read when they are asked for."""

    def __init__(self, pack: Path) -> None:
        tables = _openfold3_molecules(pack)
        super().__init__()
        for key in tables:
            name, _dot, part = key.rpartition(".")
            if part != "name":
                continue
            self[name] = Molecule(
                name=tables[key],
                element=tables[f"{name}.element"],
                charge=tables[f"{name}.charge"],
                position=tables[f"{name}.pos"][None].astype(np.float32),
                mask=tables[f"{name}.used"],
                bond=tables[f"{name}.bonds"][:, :2],
                orders=np.arange(len(tables[key]))[None],
            )


def openfold3_alignments(pack: Path, entry: str) -> dict[int, str]:
    """Name of the alignment by entity, of the recorded training cache."""
    cache = openfold3_cache(pack)
    about = cache["training_cache"]["structure_data"].get(entry)
    chains = (about or cache["metadata"]["structure_data"][entry])["chains"].values()
    named = ((one["entity_id"], one.get("alignment_representative_id")) for one in chains)
    return {entity: name for entity, name in named if name}


class BoltzMolecules(dict[str, Molecule]):
    """The components' conformers that Boltz used, hydrogens left out already."""

    def __init__(self, pack: Path) -> None:
        super().__init__()
        with np.load(pack / "components" / "conformers.npz") as tables:
            for name in {key.split(".")[0] for key in tables.files}:
                kinds = [f"{name}.conf.boltz.{kind}" for kind in ("Computed", "Ideal", "Model")]
                position = next(
                    (tables[kind] for kind in kinds if kind in tables.files),
                    np.zeros((len(tables[f"{name}.name"]), 3)),
                )
                self[name] = Molecule(
                    name=tables[f"{name}.name"],
                    element=tables[f"{name}.element"],
                    charge=tables[f"{name}.charge"],
                    position=position[None].astype(np.float32),
                    mask=np.ones(len(position), bool),
                    bond=tables[f"{name}.bonds"][:, :2],
                    orders=np.arange(len(position))[None],
                )


def boltz_alignments(path: Path, section: RulesetSection) -> dict[int, str]:
    """Name of the alignment by entity, of a structure that Boltz prepared."""
    chains = read(path).meta["record"]["chains"]
    named = zip(section.chain_entity.tolist(), chains, strict=True)
    return {entity: one["msa_id"] for entity, one in named if one["msa_id"]}


class ProtenixMolecules(dict[str, Molecule]):
    """The components' conformers that Protenix used."""

    def __init__(self, pack: Path) -> None:
        super().__init__()
        with np.load(pack / "components" / "conformers.npz") as tables:
            for name in {key.split(".")[0] for key in tables.files}:
                position = tables.get(f"{name}.conf.protenix")
                count = len(tables[f"{name}.name"])
                mask = tables.get(f"{name}.protenix_ref_mask")
                self[name] = Molecule(
                    name=tables[f"{name}.name"],
                    element=tables[f"{name}.element"],
                    charge=tables[f"{name}.charge"],
                    position=np.zeros((1, count, 3), np.float32)
                    if position is None
                    else position[None].astype(np.float32),
                    mask=np.zeros(count, bool) if mask is None else mask > 0,
                    bond=tables[f"{name}.bonds"][:, :2],
                    orders=np.arange(count)[None],
                )

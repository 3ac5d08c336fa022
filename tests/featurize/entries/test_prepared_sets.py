"""The projects' prepared sets as inputs: their own tables, exactly, samples, and damage."""

from __future__ import annotations

import gzip
import importlib
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import evofeed, own_packages
from tests.featurize.entries.prepared_sets import (
    as_version_2,
    boltz_package,
    write_inputs,
    write_openfold3_set,
    write_protenix_set,
    write_set,
)
from tests.featurize.records.allatom import (
    boltz_molecules,
    components,
    differing,
    openfold3_molecules,
    protenix_molecules,
)
from tests.loader.views.own_openfold3 import rdkit_molecule, stand_ins
from tests.loader.views.packs import (
    alignments_of,
    entry_view,
    packs,
    read,
    recordings,
    some_recordings,
)

from evofeed.base.errors import InputError, MsaError
from evofeed.featurize.entries.alignments import alignment_folders, read_alignment
from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.entries.molecules import component_molecule
from evofeed.featurize.entries.openfold3_targets import openfold3_set
from evofeed.featurize.entries.prepared import prepared_set, read_target
from evofeed.featurize.entries.protenix_targets import protenix_set
from evofeed.featurize.entries.targets import PreparedSet
from evofeed.featurize.job import JobReport
from evofeed.loader import EntryConfig, LoaderConfig
from evofeed.loader.entries.catalog import EntryCatalog
from evofeed.loader.entries.reading import plan_entry, project_module
from evofeed.loader.views.boltz.rows import CODES
from evofeed.loader.views.laid import OnHost, Sparse
from evofeed.protein.datapoints import alignment_name, alignment_names
from evofeed.protein.molecules import Molecule
from evofeed.store import Dataset, Entries

NAMES = {"uniref90_hits": "pairing", "mgnify_hits": "non_pairing"}
"""Files of Protenix's with the rows of OpenFold3's."""
WRITERS = {"openfold3": write_openfold3_set, "protenix": write_protenix_set, "boltz": write_set}


def written_set(project: str, folder: Path, pack: Path, *entries: str) -> PreparedSet:
    """A set written and found again."""
    prepared = prepared_set(str(WRITERS[project](folder, pack, entries)), "")
    assert prepared is not None
    assert (prepared.project, [item[0] for item in prepared.items]) == (project, [*entries])
    return prepared


PATHS = [path for project in WRITERS for path in some_recordings(f"{project}/structure/*.npz", 8)]


SKIPPED = ("molecule_", "component_molecule", "atom_reference", "residue_component")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_the_view_of_a_prepared_structure_is_that_of_the_projects_own_tables(
    path: Path, tmp_path: Path
) -> None:
    pack, project = path.parents[2], path.parts[-3]
    ((_name, *files),) = written_set(project, tmp_path / "set", pack, path.stem).items
    target = read_target(project, *files)
    record, section = target.entry.record, target.entry.sections[project]
    recorded = entry_view(project, pack, path.stem)
    names, alignments = alignments_of(recorded), alignment_names(record, section)
    if project != "protenix":
        rows = {read_alignment([file]).name for file in files[2:]}
        assert {alignments[entity] for entity in names} == rows
    molecules = openfold3_molecules(pack) if project == "openfold3" else target.molecules
    table = [components(pack)] if project == "protenix" else []
    view = project_module(project, "tables").__dict__[f"{project}_view"]
    own_view = view(record, section, molecules, names, *table)
    assert differing(own_view, recorded, skipped=SKIPPED) == []
    own_atoms, atoms = own_view.atom_reference, recorded.atom_reference
    position = recorded.molecule_position[0][atoms].astype(np.float32)
    single = np.isin(own_atoms, own_view.molecule_atom[:-1][np.diff(own_view.molecule_atom) == 1])
    if project == "boltz":  # whose view has a single atom at 0
        position[single] = 0
    np.testing.assert_array_equal(own_view.molecule_mask[own_atoms], recorded.molecule_mask[atoms])
    np.testing.assert_array_equal(own_view.molecule_position[0][own_atoms], position)
    if project == "boltz":  # and the tables of its version 2 give the same
        as_version_2(Path(files[0]))
        entry = read_target("boltz", *files, components=components(pack)).entry
        own_view = view(entry.record, entry.sections["boltz"], boltz_molecules(pack), names)
        assert differing(own_view, recorded, skipped=SKIPPED) == []
        with pytest.raises(InputError, match="dictionary"):
            read_target("boltz", *files)


@pytest.mark.slow
def test_boltz_reads_the_tables_that_stand_for_its_version_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boltz_package(monkeypatch)
    types = importlib.import_module("boltz.data.types")
    ((_name, file, *_),) = written_set("boltz", tmp_path, packs()[0], "2x1f").items
    as_version_2(Path(file))
    read_back = types.StructureV2.load(Path(file))
    names = {"atoms": "AtomV2", "bonds": "BondV2", "coords": "Coords", "ensemble": "Ensemble"}
    assert {n: getattr(read_back, n).dtype for n in names} == {
        n: np.dtype(getattr(types, kind)) for n, kind in names.items()
    }


def prepared(source: EntriesInput, data: Path, **arguments: Any) -> tuple[JobReport, Entries]:
    """The report of a job, and the entries that it published."""
    report = prepare_entries(source, str(data), **arguments)
    assert report.state == "published", report.message
    return report, Dataset.open(str(data)).entries


def samples(entries: Entries, project: str) -> dict[Any, dict[str, np.ndarray]]:
    """Columns of a sample of every datapoint, and its weight, by entry and chains."""
    rules = getattr(EntryConfig, project)()
    catalog = EntryCatalog(entries, 0, LoaderConfig(entries=rules, max_resolution=float("inf")))
    tables = {}
    for row, weight in zip(catalog.rows.tolist(), catalog._weights(rules), strict=True):
        location = catalog.location(row)
        laid, (_, names) = plan_entry(entries.dataset.storage, location, 7, rules)
        packed = {name: numbers(value) for name, value in laid.items()}
        tables[location.chain_id.partition("-")[0], names] = {**packed, "weight": weight}
    return tables


def numbers(value: Any) -> np.ndarray:
    """A packed column; of a sparse one the indices and values."""
    if isinstance(value, Sparse):
        rest = np.ones(len(value.indices)) if value.values is None else value.values
        return np.unique(np.stack([value.indices, rest]), axis=1)
    return value.value if isinstance(value, OnHost) else value


def protenix_conformers(pack: Path, entries: Entries) -> dict[str, Molecule]:
    """Protenix's recorded conformers of the components of a dataset, and orders of our own."""
    recorded, table = protenix_molecules(pack), components(pack)
    codes = entries.molecules("protenix")
    computed = {code: component_molecule(table[code], 1).molecule for code in codes}
    return {code: molecule.overlaid(recorded[code]) for code, molecule in computed.items()}


@pytest.mark.parametrize("project", ["openfold3", "protenix"])
def test_samples_of_a_prepared_set_are_those_of_its_mmcif(
    project: str, tmp_path: Path, inside: None
) -> None:
    pack, entries, rows = packs()[0], ("1pfe", "2x1f"), str(tmp_path / "msa")
    prepared_files = written_set(project, tmp_path / "set", pack, *entries)
    (dictionary,) = (pack / "components").glob("components.cif*")
    names = str if project == "openfold3" else lambda source: NAMES.get(source, "hmmsearch")
    write_inputs(tmp_path, pack, entries, names)
    rules: dict[str, Any] = {"projects": (project,), "conformers": 2}
    rules["components"] = str(dictionary)
    alignments = prepared_files.alignments or rows
    source = EntriesInput(structures=str(tmp_path / "set"), alignments=alignments, **rules)
    report, entries_of_set = prepared(source, tmp_path / "one")
    assert not report.broken
    recorded = {project: protenix_conformers(pack, entries_of_set)} if project == "protenix" else {}
    source = EntriesInput(structures=str(tmp_path / "cif"), alignments=rows, **rules)
    _, entries_of_mmcif = prepared(source, tmp_path / "two", molecules=recorded)
    actual, expected = samples(entries_of_set, project), samples(entries_of_mmcif, project)
    assert actual.keys() == expected.keys() and len(actual) > 4
    for key, packed in expected.items():
        assert packed.keys() == actual[key].keys()
        wrong = [n for n in packed if not np.array_equal(packed[n], actual[key][n])]
        assert not wrong, key


@pytest.mark.parametrize("project", WRITERS)
def test_a_damaged_prepared_file_is_a_typed_error(project: str, tmp_path: Path) -> None:
    ((_name, *files),) = written_set(project, tmp_path, packs()[0], "2x1f").items
    refused = 0
    for file in map(Path, (files[0], *files[2:])):
        data = file.read_bytes()
        for offset in range(0, len(data), max(1, len(data) // 40)):
            file.write_bytes(data[:offset] + bytes([data[offset] ^ 0x55]) + data[offset + 1 :])
            try:
                read_target(project, *files)
                for alignment in files[2:]:
                    read_alignment([alignment])
            except (InputError, MsaError) as error:
                assert str(file) in str(error)
                refused += 1
        file.write_bytes(data)
    assert refused > 38


HARMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a short column": lambda t: t | {"res_name": t["res_name"][:-1]},
    "bonds of no atom": lambda t: t | {"bonds": t["bonds"] + 5000},
    "infinite": lambda t: t | {"coord": np.where(np.isnan(t["coord"]), np.nan, np.inf)},
    "chains of no cache": lambda t: t | {"chain_id": np.char.add(t["chain_id"], "9")},
    "a chain in two places": lambda t: (
        t | {"chain_id": np.roll(np.unique(t["chain_id"]), 1)[t["res_id"] % 2]}
    ),
    "no such type": lambda t: t | {"molecule_type_id": t["molecule_type_id"] + 7},
    "a column missing": lambda t: {k: v for k, v in t.items() if k != "charge"},
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_tables_that_contradict_each_other_are_a_typed_error(harm: Any, tmp_path: Path) -> None:
    ((_name, *files),) = written_set("openfold3", tmp_path, packs()[0], "1pfe").items
    with np.load(files[0]) as members:
        table = dict(members)
    np.savez(files[0], **harm(table))
    with pytest.raises(InputError, match=r"1pfe\.npz"):
        read_target("openfold3", *files)


class Foreign:
    """A pickle that writes a file when it is opened."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.file, "run"))


def test_no_pickle_of_a_set_runs_anything(tmp_path: Path) -> None:
    harm = Foreign(tmp_path / "was_run")
    ((_name, *files),) = written_set("protenix", tmp_path / "one", packs()[0], "2x1f").items
    Path(files[0]).write_bytes(gzip.compress(pickle.dumps({"atom_array": harm})))
    with pytest.raises(InputError, match="2x1f"):
        read_target("protenix", *files)
    ((_name, *files),) = written_set("openfold3", tmp_path / "two", packs()[0], "2x1f").items
    np.savez(files[2], uniref90_hits=np.array({"msa": harm}, object))
    with pytest.raises(MsaError, match="2x1f_1"):
        read_target("openfold3", *files)
    assert not harm.file.exists()


def test_a_set_names_what_is_wrong_with_its_list_and_what_it_lacks(tmp_path: Path) -> None:
    pack = packs()[0]
    folder = write_openfold3_set(tmp_path / "one", pack, ["2x1f"])
    cache = folder / "training_cache.json"
    cache.write_text(cache.read_text().replace('"chains"', '"chain"'))
    with pytest.raises(InputError, match=r"training_cache\.json"):
        openfold3_set(str(folder), "")
    table = write_protenix_set(tmp_path / "two", pack, ["2x1f"]) / "indices"
    (table / "weightedPDB_indices.csv").write_text("pdb_id,type\n2x1f,chain\n")
    with pytest.raises(InputError, match=r"indices\.csv"):
        protenix_set(str(table.parent), "")
    assert prepared_set(str(tmp_path), "") is None
    source = EntriesInput(structures=str(folder), components=str(cache), projects=("protenix",))
    cache.write_text(cache.read_text().replace('"chain"', '"chains"'))
    with pytest.raises(InputError, match="rules only"):
        prepare_entries(source, str(tmp_path / "data"))


def test_rows_of_an_rna_are_found_by_protenixs_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "7_all.a3m").write_text(">query\nGUUGU\n>row\nGU-GU\n")
    (tmp_path / "7" / "hmmsearch.a3m").write_text(">other\nMK\n")
    ((file, hits),) = alignment_folders(tmp_path)
    assert read_alignment([file, hits]).sources == ("rna",)
    assert read_alignment([file]).name == alignment_name("GUUGU", is_rna=True)


@pytest.fixture
def openfold3(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(monkeypatch)
    own_packages(monkeypatch, "openfold3")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["pkl", "utf-8"])
def test_a_cache_in_lmdb_is_read_as_the_json_it_was_made_of(
    openfold3: None, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = "openfold3.core.data"
    io = importlib.import_module(f"{core}.io.dataset_cache")
    lmdb = importlib.import_module(f"{core}.primitives.caches.lmdb")
    folder = write_openfold3_set(tmp_path, packs()[0], ["1pfe", "2x1f"])
    text = json.dumps(json.loads((folder / "training_cache.json").read_text()), indent=4)
    (folder / "training_cache.json").write_text(text)
    expected = openfold3_set(str(folder), "")
    values = {f"{kind}_data_encoding": encoding for kind in ("structure", "reference_molecule")}
    cache = io.read_datacache(folder / "training_cache.json")
    lmdb.convert_datacache_to_lmdb(cache, folder / "cache.lmdb", 1 << 24, **values)
    (folder / "training_cache.json").unlink()
    actual = openfold3_set(str(folder), "")
    assert actual is not None and expected is not None
    for item, expected_item in zip(actual.items, expected.items, strict=True):
        assert (item[:2], item[3:]) == (expected_item[:2], expected_item[3:])
        assert json.loads(item[2]) == json.loads(expected_item[2])
    assert actual.molecules.keys() == expected.molecules.keys()
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(InputError, match="pip install lmdb"):
        openfold3_set(str(folder / "cache.lmdb"), "")


@pytest.mark.slow
def test_a_molecule_that_stands_for_a_conformer_is_read(openfold3: None, tmp_path: Path) -> None:
    module = importlib.import_module("openfold3.core.data.io.structure.mol")
    (tmp_path / "reference_mols").mkdir()
    for code in ("PRO", "GLY"):
        expected = openfold3_molecules(packs()[0])[code]
        file = tmp_path / "reference_mols" / f"{code}.sdf"
        module.write_annotated_sdf(rdkit_molecule(expected, packs()[0], code), file)
    metadata = {"conformer_gen_strategy": "use_fallback", "set_fallback_to_nan": False}
    reference = {"PRO": metadata | {"set_fallback_to_nan": True}, "GLY": metadata}
    cache = {"structure_data": {"1xyz": {"status": "failed"}}, "reference_molecule_data": reference}
    (tmp_path / "metadata.json").write_text(json.dumps(cache))
    read_set = prepared_set(str(tmp_path / "metadata.json"), "")
    assert read_set is not None
    assert read_set.left_out == [("1xyz", "OpenFold3 has not prepared it: failed")]
    molecule = read_set.molecules["GLY"]
    for name in ("name", "element", "charge", "mask"):
        assert np.array_equal(getattr(molecule, name), getattr(expected, name)), name
    np.testing.assert_allclose(molecule.position, expected.position, atol=5.1e-5)
    hidden = read_set.molecules["PRO"]
    assert not hidden.mask.any() and not hidden.position.any()


@pytest.mark.parametrize("path", recordings("boltz/msa/*.npz"), ids=lambda path: path.stem)
def test_rows_of_a_prepared_alignment_are_boltzs(path: Path, tmp_path: Path) -> None:
    pack = path.parent.parent.parent
    folder = write_set(tmp_path, pack, [path.stem.split("_")[0]])
    rows, table = read_alignment([str(folder / "msa" / path.name)]), read(path).arrays
    width = rows.num_columns
    codes = table["residues.res_type"].reshape(-1, width)
    np.testing.assert_array_equal(CODES[rows.letters[rows.row_letters]], codes)
    names = [*rows.species, "-1"]  # -1 is the last
    taxa = [int(names[row]) for row in rows.row_species.tolist()]
    assert taxa == table["sequences.taxonomy"].tolist()
    sizes = table["sequences.del_end"] - table["sequences.del_start"]
    np.testing.assert_array_equal(np.diff(rows.deletion_start), sizes)
    np.testing.assert_array_equal(rows.deletion_column, table["deletions.res_idx"])
    np.testing.assert_array_equal(rows.deletion_count, table["deletions.deletion"])


def test_a_prepared_set_is_recognised_and_gives_samples(tmp_path: Path, inside: None) -> None:
    pack = packs()[0]
    folder = write_set(tmp_path / "targets", pack, ["2x1f", "1pfe"])
    damaged = (folder / "structures" / "2x1f.npz").read_bytes()[:5000]
    (folder / "structures" / "bad.npz").write_bytes(damaged)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["records"].append({**manifest["records"][0], "id": "bad"})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (dictionary,) = (pack / "components").glob("components.cif*")
    options = ["--components", dictionary, "--executor", "local", "--json"]
    report = evofeed("entries", "prepare", folder, tmp_path / "data", *options).json
    assert report["state"] == "published"
    assert [entry["chain_id"] for entry in report["broken"]] == ["bad"]
    assert "no readable npz" in report["broken"][0]["message"]
    entries = Dataset.open(str(tmp_path / "data")).entries
    assert list(entries) == ["1pfe", "2x1f"]
    assert set(entries.datapoints["cluster_a"].to_pylist()) >= {"p6"}
    orders = entries.molecules("boltz")
    assert len(orders["PHE"].orders) == 2  # ours, for the set has none
    rules = EntryConfig.boltz()
    config = LoaderConfig(entries=rules, max_resolution=float("inf"))
    catalog = EntryCatalog(entries, 0, config)
    for row in catalog.rows.tolist():
        packed, _ = plan_entry(entries.dataset.storage, catalog.location(row), row, rules)
        assert len(packed)

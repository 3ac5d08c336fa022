"""OpenFold3's and Protenix's prepared sets as inputs: their own tables, exactly, and samples."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.featurize.entries.prepared_sets import (
    openfold3_texts,
    write_openfold3_set,
    write_protenix_set,
)
from tests.featurize.records.allatom import (
    components,
    differing,
    openfold3_molecules,
    protenix_molecules,
)
from tests.loader.views.packs import entry_view, openfold3_cache, packs, some_recordings

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
from evofeed.loader.entries.reading import plan_entry
from evofeed.loader.views.openfold3.tables import openfold3_view
from evofeed.loader.views.protenix.tables import protenix_view
from evofeed.protein.datapoints import alignment_name, alignment_names
from evofeed.protein.molecules import Molecule
from evofeed.store import Dataset, Entries

PROTENIX_NAMES = {
    "uniref90_hits": "pairing",
    "mgnify_hits": "non_pairing",
    "uniprot_hits": "hmmsearch",
    "rnacentral_hits": "{}_all",
}
"""Files of Protenix's with the rows of OpenFold3's."""
WRITERS = {"openfold3": write_openfold3_set, "protenix": write_protenix_set}


def made(project: str, folder: Path, pack: Path, *entries: str) -> PreparedSet:
    """A set written and found again."""
    found = prepared_set(str(WRITERS[project](folder, pack, entries)), "")
    assert found is not None
    assert (found.project, [one[0] for one in found.items]) == (project, [*entries])
    return found


@pytest.mark.parametrize(
    "path", some_recordings("openfold3/structure/*.npz", 8), ids=lambda p: p.stem
)
def test_the_view_of_a_prepared_structure_is_that_of_openfold3s_own_tables(
    path: Path, tmp_path: Path
) -> None:
    pack = path.parents[2]
    ((_name, *files),) = made("openfold3", tmp_path / "set", pack, path.stem).items
    target = read_target("openfold3", *files)
    record, section = target.entry.record, target.entry.sections["openfold3"]
    theirs = entry_view("openfold3", pack, path.stem)
    names = alignment_names(record, section)
    ours = openfold3_view(record, section, openfold3_molecules(pack), names)
    skipped = ("molecule_orders", "alignments", "chain_alignment")
    assert differing(ours, theirs, skipped=skipped) == []
    aligned = {names.get(int(one)) for one in section.chain_entity[theirs.chain_alignment >= 0]}
    assert aligned == {read_alignment([file]).name for file in files[2:]}


@pytest.mark.parametrize(
    "path", some_recordings("protenix/structure/*.npz", 8), ids=lambda p: p.stem
)
def test_the_view_of_a_prepared_structure_is_that_of_protenixs_own_tables(
    path: Path, tmp_path: Path
) -> None:
    pack = path.parents[2]
    ((_name, *files),) = made("protenix", tmp_path, pack, path.stem).items
    target = read_target("protenix", *files)
    record, section = target.entry.record, target.entry.sections["protenix"]
    theirs = entry_view("protenix", pack, path.stem)
    names = {
        int(theirs.chain_entity[chain]): theirs.alignments[number]
        for chain, number in enumerate(theirs.chain_alignment.tolist())
        if number >= 0
    }
    ours = protenix_view(record, section, target.molecules, names, components(pack))
    skipped = ("molecule_", "component_molecule", "atom_reference")
    assert differing(ours, theirs, skipped=skipped) == []
    mine, own = ours.atom_reference, theirs.atom_reference
    np.testing.assert_array_equal(ours.molecule_mask[mine], theirs.molecule_mask[own])
    np.testing.assert_array_equal(
        ours.molecule_position[0][mine], theirs.molecule_position[0][own].astype(np.float32)
    )


class Here:
    """Units one after the other in this process."""

    def __init__(self, _options: Any) -> None:
        self.outcomes: list[Any] = []

    def room(self) -> int:
        return 1

    def submit(self, task: Any) -> None:
        self.outcomes.append(task.work(lambda _name: None))

    def wait(self, _timeout: float) -> list[Any]:
        done, self.outcomes = self.outcomes, []
        return done

    def close(self) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evofeed.featurize.entries.job.open_executor", Here)


def prepared(source: EntriesInput, data: Path, **given: Any) -> tuple[JobReport, Entries]:
    """The report of a job, and the entries that it published."""
    report = prepare_entries(source, str(data), **given)
    assert report.state == "published", report.message
    return report, Dataset.open(str(data)).entries


def samples(entries: Entries, project: str) -> dict[Any, dict[str, np.ndarray]]:
    """What is decided about a sample of every datapoint, and its weight, by entry and chains."""
    rules = getattr(EntryConfig, project)()
    catalog = EntryCatalog(entries, 0, LoaderConfig(entries=rules, max_resolution=float("inf")))
    found = {}
    for row, weight in zip(catalog.rows.tolist(), catalog._weights(rules), strict=True):
        place = catalog.place(row)
        packed, names = plan_entry(entries.dataset.storage, place, 7, rules)
        packed["bonds"] = np.unique(np.sort(packed["bonds"], axis=1), axis=0)  # of a matrix
        found[place.chain_id.partition("-")[0], names] = {**packed, "weight": weight}
    return found


def protenix_conformers(pack: Path, entries: Entries) -> dict[str, Molecule]:
    """Protenix's recorded conformers of the components of a dataset, and orders of our own."""
    theirs, table = protenix_molecules(pack), components(pack)
    codes = entries.molecules("protenix")
    own = {code: component_molecule(table[code], 1).molecule for code in codes}
    return {code: one.overlaid(theirs[code]) for code, one in own.items()}


@pytest.mark.parametrize("project", ["openfold3", "protenix"])
def test_samples_of_a_prepared_set_are_those_of_its_mmcif(
    project: str, tmp_path: Path, here: None
) -> None:
    pack, entries, rows = packs()[0], ("1pfe", "2x1f"), tmp_path / "msa"
    found = made(project, tmp_path / "set", pack, *entries)
    (dictionary,) = (pack / "components").glob("components.cif*")
    (tmp_path / "cif").mkdir()
    known = openfold3_cache(pack)["training_cache"]["structure_data"]
    for entry in entries:
        file = pack / "inputs" / "mmcif" / f"{entry}.cif.gz"
        (tmp_path / "cif" / file.name).write_bytes(file.read_bytes())
        for chain in known[entry]["chains"].values():
            if name := chain["alignment_representative_id"]:
                (rows / name).mkdir(parents=True, exist_ok=True)
                for source, text in openfold3_texts(pack, name).items():
                    theirs = source if project == "openfold3" else PROTENIX_NAMES[source]
                    (rows / name / f"{theirs.format(name)}.a3m").write_text(text)
    rules: dict[str, Any] = {"projects": (project,), "conformers": 2}
    rules["components"] = str(dictionary)
    given = found.alignments or str(rows)
    source = EntriesInput(structures=str(tmp_path / "set"), alignments=given, **rules)
    report, ours = prepared(source, tmp_path / "one")
    assert not report.broken
    recorded = {project: protenix_conformers(pack, ours)} if project == "protenix" else {}
    source = EntriesInput(structures=str(tmp_path / "cif"), alignments=str(rows), **rules)
    _, wanted = prepared(source, tmp_path / "two", molecules=recorded)
    one, two = samples(ours, project), samples(wanted, project)
    assert one.keys() == two.keys() and len(one) > 4
    for key, packed in two.items():
        assert packed.keys() == one[key].keys()
        wrong = [n for n in packed if not np.array_equal(packed[n], one[key][n])]
        assert not wrong, key


@pytest.mark.parametrize("project", ["openfold3", "protenix"])
def test_a_damaged_prepared_file_is_a_typed_error(project: str, tmp_path: Path) -> None:
    ((_name, *files),) = made(project, tmp_path, packs()[0], "2x1f").items
    refused = 0
    for file in map(Path, (files[0], *files[2:])):
        whole = file.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
            try:
                read_target(project, *files)
                for one in files[2:]:
                    read_alignment([one])
            except (InputError, MsaError) as error:
                assert str(file) in str(error)
                refused += 1
        file.write_bytes(whole)
    assert refused > 38


def _short(table: dict[str, Any]) -> None:
    table["res_name"] = table["res_name"][:-1]


def _far_bond(table: dict[str, Any]) -> None:
    table["bonds"] = table["bonds"] + 5000


def _infinite(table: dict[str, Any]) -> None:
    table["coord"] = np.where(np.isfinite(table["coord"]), np.inf, np.nan)


def _other_chain(table: dict[str, Any]) -> None:
    table["chain_id"] = np.char.add(table["chain_id"], "9")


def _two_runs(table: dict[str, Any]) -> None:
    table["chain_id"][3] = "2"


def _odd_type(table: dict[str, Any]) -> None:
    table["molecule_type_id"] = table["molecule_type_id"] + 7


def _no_charge(table: dict[str, Any]) -> None:
    del table["charge"]


@pytest.mark.parametrize(
    "harm", [_short, _far_bond, _infinite, _other_chain, _two_runs, _odd_type, _no_charge]
)
def test_tables_that_contradict_each_other_are_a_typed_error(harm: Any, tmp_path: Path) -> None:
    ((_name, *files),) = made("openfold3", tmp_path, packs()[0], "2x1f").items
    with np.load(files[0]) as members:
        table = dict(members)
    harm(table)
    np.savez(files[0], **table)
    with pytest.raises(InputError, match=r"2x1f\.npz"):
        read_target("openfold3", *files)


class Foreign:
    """A pickle that writes a file when it is opened."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.file, "run"))


def test_no_pickle_of_a_set_runs_anything(tmp_path: Path) -> None:
    harm = Foreign(tmp_path / "was_run")
    ((_name, *files),) = made("protenix", tmp_path / "one", packs()[0], "2x1f").items
    Path(files[0]).write_bytes(gzip.compress(pickle.dumps({"atom_array": harm})))
    with pytest.raises(InputError, match="2x1f"):
        read_target("protenix", *files)
    ((_name, *files),) = made("openfold3", tmp_path / "two", packs()[0], "2x1f").items
    np.savez(files[2], uniref90_hits=np.array({"msa": harm}, object))
    with pytest.raises(MsaError, match="2x1f_1"):
        read_target("openfold3", *files)
    assert not harm.file.exists()


def test_a_set_names_what_is_wrong_with_its_list_and_what_it_lacks(tmp_path: Path) -> None:
    pack = packs()[0]
    whole = write_openfold3_set(tmp_path / "one", pack, ["2x1f"])
    cache = whole / "training_cache.json"
    cache.write_text(cache.read_text().replace('"chains"', '"chain"'))
    with pytest.raises(InputError, match=r"training_cache\.json"):
        openfold3_set(str(whole), "")
    table = write_protenix_set(tmp_path / "two", pack, ["2x1f"]) / "indices"
    (table / "weightedPDB_indices.csv").write_text("pdb_id,type\n2x1f,chain\n")
    with pytest.raises(InputError, match=r"indices\.csv"):
        protenix_set(str(table.parent), "")
    assert prepared_set(str(tmp_path), "") is None


def test_rows_of_an_rna_are_found_by_protenixs_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "7_all.a3m").write_text(">query\nGUUGU\n>row\nGU-GU\n")
    (tmp_path / "7" / "hmmsearch.a3m").write_text(">other\nMK\n")
    ((file,),) = alignment_folders(tmp_path)
    assert read_alignment([file]).sources == ("rna",)
    assert read_alignment([file]).name == alignment_name("GUUGU", is_rna=True)

"""From mmCIF files, alignments and components to the entries of a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.synthetic_entries import dataset_uri, prepare_again, prepared

from evofeed.base.errors import InputError, MsaError
from evofeed.cli import main
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.molecules import component_molecule
from evofeed.featurize.structures.components import read_components
from evofeed.store import Dataset
from evofeed.synth.entries import components_cif

pytestmark = pytest.mark.system


def test_ligands_nucleic_acids_and_links_are_carried_and_what_is_left_out_is_named(
    tmp_path: Path,
) -> None:
    report = prepared(tmp_path / "raw", tmp_path / "data", count=2)
    assert report.state == "published"
    why = "openfold3: residue SO4 of chain 7 left out: crystallisation aid"
    assert why in report.notes["s000"]
    assert any(note.startswith("boltz: chain SO4") for note in report.notes["s000"])
    assert any(note.startswith("protenix: ") for note in report.notes["s000"])
    entries = Dataset.open(str(tmp_path / "data")).entries
    assert list(entries) == ["s000-1", "s001-1"]
    record, section = entries["s000-1"], entries.section("s000-1", "openfold3")
    assert {"LIG", "MG", "MSE", "A", "U"} <= set(record.residue_name.tolist())
    assert set(section.chain_type.tolist()) == {0, 2, 3}
    assert set(entries.section("s001-1", "openfold3").chain_type.tolist()) == {0, 1, 3}
    kinds = set(
        zip(*(entries.datapoints[name].to_pylist() for name in ("kind_a", "kind_b")), strict=True)
    )
    assert {(0, -1), (2, -1), (3, -1), (0, 3)} <= kinds
    assert {"LIG", "MG", "ALA"} <= set(entries.molecules("openfold3"))
    assert entries.molecules("openfold3")["LIG"].position.shape[0] == 2
    assert len(entries.components()) > 15


def test_run_again_it_gives_the_same_snapshot_and_does_nothing_twice(tmp_path: Path) -> None:
    first = prepared(tmp_path / "raw", tmp_path / "data", count=2)
    again = prepare_again(tmp_path / "raw", tmp_path / "data")
    assert again.resumed == again.units
    entries = [
        Dataset.open(str(tmp_path / "data"), one).entries
        for one in (first.snapshot, again.snapshot)
    ]  # type: ignore[arg-type]
    assert entries[0].records.equals(entries[1].records)
    elsewhere = prepare_again(tmp_path / "raw", tmp_path / "other")
    assert elsewhere.snapshot == first.snapshot


def test_another_rdkit_makes_everything_again_and_another_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(tmp_path / "raw", tmp_path / "data", count=1, projects=("boltz",))
    monkeypatch.setattr("evofeed.featurize.entries.job.conformer_version", lambda: "0.0")
    again = prepare_again(tmp_path / "raw", tmp_path / "data", projects=("boltz",))
    assert again.resumed == 0
    assert again.snapshot != first.snapshot
    assert Dataset.open(str(tmp_path / "data")).manifest.config["entries"]["rdkit"] == "0.0"


def test_a_broken_file_is_listed_with_its_reason_and_the_others_are_published(
    tmp_path: Path,
) -> None:
    raw = tmp_path / "raw"
    prepared(raw, tmp_path / "first", count=2)
    (raw / "mmcif" / "bad.cif").write_text("data_bad\n_entry.id bad\n")
    text = (raw / "mmcif" / "s001.cif").read_text()
    undated = text.replace("_pdbx_audit_revision_history", "_pdbx_other")
    (raw / "mmcif" / "s001.cif").write_text(undated)
    report = prepare_again(raw, tmp_path / "data")
    assert report.state == "published"
    assert {one["chain_id"]: "no atoms" in one["message"] for one in report.broken} == {"bad": True}
    assert "openfold3 does not take it: no _pdbx_audit_revision_history" in report.notes["s001"]
    dataset = Dataset.open(str(tmp_path / "data"))
    assert list(dataset.entries) == ["s000-1", "s001-1"]
    assert dataset.entries.table["tokens_openfold3"].to_pylist()[1] == -1
    assert dataset.entries.table["tokens_boltz"].to_pylist()[1] > 0
    dropped = [one["entry"] for one in dataset.manifest.config["entries"]["dropped"]]
    assert dropped == ["bad"]
    strict = prepare_again(raw, tmp_path / "strict", options={"max_broken": 0.2})
    assert (strict.exit_code, strict.snapshot) == (1, None)
    assert "1 of 3 entries are left out, more than max_broken 0.2 allows" in strict.message


def test_nothing_is_published_if_no_entry_is_good(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    prepared(raw, tmp_path / "first", count=1)
    (raw / "mmcif" / "s000.cif").write_text("data_s000\n_entry.id s000\n")
    report = prepare_again(raw, tmp_path / "data")
    assert (report.exit_code, report.snapshot) == (1, None)
    assert "none of 1 entries" in report.message


def test_alignments_of_two_files_keep_every_row_and_its_species() -> None:
    entries = Dataset.open(dataset_uri()).entries
    (name,) = entries.table["alignments"].to_pylist()[1]
    alignment = entries.alignment(name)
    assert alignment.sources == ("uniprot_hits", "uniref90_hits")
    assert np.bincount(alignment.row_source).tolist() == [41, 61]
    assert len(alignment.species) == 12
    assert alignment.deletion_count.tolist() == [2] * len(alignment.deletion_count)
    assert len(alignment.deletion_count) == 34


def test_an_alignment_of_another_query_is_refused_by_name(tmp_path: Path) -> None:
    files = (tmp_path / "a.a3m", tmp_path / "b.a3m")
    files[0].write_text(">q\nACD\n>r\nA-D\n")
    files[1].write_text(">q\nACE\n")
    with pytest.raises(MsaError, match=r"b\.a3m"):
        read_alignment([str(one) for one in files])


def test_rows_equal_but_for_gaps_have_one_gapless_number(tmp_path: Path) -> None:
    path = tmp_path / "uniref90_hits.a3m"
    path.write_text(">q\nACDE\n>one\nA-DE\n>two\nADE-\n>three\nAcDE-\n>four\nACDE\n")
    alignment = read_alignment([str(path)])
    assert alignment.row_gapless.tolist() == [0, 1, 1, 0, 0]


def test_conformers_are_the_same_each_time_and_differ_from_each_other(tmp_path: Path) -> None:
    (tmp_path / "c.cif").write_text(components_cif())
    table = read_components(tmp_path / "c.cif")
    one, two = (component_molecule(table["LYS"], 3) for _ in range(2))
    assert one.origin == "computed"
    assert np.array_equal(one.molecule.position, two.molecule.position)
    assert one.molecule.position.shape == (3, 10, 3)
    assert not np.allclose(one.molecule.position[0], one.molecule.position[1], atol=0.1)
    phe = component_molecule(table["PHE"], 1).molecule
    assert np.array_equal(phe.orders[0], np.arange(len(phe.name)))
    assert all(sorted(order) == list(range(len(phe.name))) for order in phe.orders.tolist())


def test_recorded_conformers_are_taken_as_they_are(tmp_path: Path) -> None:
    from evofeed.featurize.entries.input import EntriesInput
    from evofeed.featurize.entries.job import prepare_entries
    from evofeed.featurize.job import JobOptions

    raw = tmp_path / "raw"
    prepared(raw, tmp_path / "first", count=1)
    recorded = Dataset.open(str(tmp_path / "first")).entries.molecules("openfold3")
    source = EntriesInput(structures=str(raw / "mmcif"), components=str(raw / "components.cif"))
    options = JobOptions(executor="local", workers=1)
    prepare_entries(
        source, str(tmp_path / "data"), options=options, molecules={"openfold3": recorded}
    )
    again = Dataset.open(str(tmp_path / "data")).entries.molecules("openfold3")
    assert np.array_equal(again["LIG"].position, recorded["LIG"].position)


def test_the_command_line_prepares_and_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "data"
    prepared(raw, tmp_path / "first", count=1)
    arguments = ["--components", str(raw / "components.cif"), "--conformers", "1"]
    arguments += ["--executor", "local", "--workers", "1"]
    with pytest.raises(SystemExit) as end:
        main(["entries", "prepare", str(raw / "mmcif"), str(out), *arguments])
    assert end.value.code == 0
    assert "1 of 1 files" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["entries", "ls", str(out), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["entry_id"] == "s000-1"


def test_a_folder_without_mmcif_says_so(tmp_path: Path) -> None:
    from evofeed.featurize.entries.input import structure_files

    with pytest.raises(InputError, match="no mmCIF file here"):
        structure_files(str(tmp_path))

"""From mmCIF files, alignments and components to the entries of a snapshot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from tests.conftest import evofeed
from tests.featurize.job.stage import LOADED
from tests.synthetic_entries import dataset_uri, prepare_again, prepared

from evofeed.base.errors import InputError, JobError, MsaError
from evofeed.featurize.entries import job
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.input import structure_files
from evofeed.featurize.entries.molecules import component_molecule
from evofeed.featurize.job import JobProgress, JobReport, driver
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import ledger_url
from evofeed.featurize.structures.components import read_components
from evofeed.store import Dataset
from evofeed.store.inner import hold, open_storage
from evofeed.synth import write_entries
from evofeed.synth.entries import COMPONENTS

pytestmark = pytest.mark.system


class Prepared(NamedTuple):
    raw: Path
    data: Path
    report: JobReport


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Two entries prepared for all projects; a test that changes them works on a copy."""
    home = tmp_path_factory.mktemp("made")
    return Prepared(home / "raw", home / "data", prepared(home / "raw", home / "data", count=2))


def test_ligands_nucleic_acids_and_links_are_carried_what_is_left_out_is_named(
    made: Prepared,
) -> None:
    assert made.report.state == "published"
    message = "openfold3: residue SO4 of chain 7 left out: crystallisation aid"
    assert message in made.report.notes["s000"]
    assert any(note.startswith("boltz: chain SO4") for note in made.report.notes["s000"])
    assert any(note.startswith("protenix: ") for note in made.report.notes["s000"])
    entries = Dataset.open(str(made.data)).entries
    assert list(entries) == ["s000-1", "s001-1"]
    record, section = entries["s000-1"], entries.section("s000-1", "openfold3")
    assert {"LIG", "MG", "MSE", "A", "U"} <= set(record.residue_name.tolist())
    assert set(section.chain_type.tolist()) == {0, 2, 3}
    assert set(entries.section("s001-1", "openfold3").chain_type.tolist()) == {0, 1, 3}
    kinds = entries.datapoints.select(["kind_a", "kind_b"]).to_pylist()
    assert {(0, -1), (2, -1), (3, -1), (0, 3)} <= {(row["kind_a"], row["kind_b"]) for row in kinds}
    assert {"LIG", "MG", "ALA"} <= set(entries.molecules("openfold3"))
    assert entries.molecules("openfold3")["LIG"].position.shape[0] == 2
    assert len(entries.components()) > 15


@pytest.mark.parametrize(
    ("error", "state"),
    [(OSError("the disk is full"), "failed"), (KeyboardInterrupt(), "cancelled")],
)
def test_a_job_that_breaks_off_says_so(
    error: BaseException, state: str, made: Prepared, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, inside: None,
) -> None:  # fmt: skip
    data = str(tmp_path / "data")
    monkeypatch.setattr("evofeed.featurize.entries.job.add_entries", Mock(side_effect=error))
    with pytest.raises(type(error)):
        prepare_again(made.raw, Path(data), projects=("boltz",), conformers=1)
    with closing(Ledger(ledger_url("", data))) as ledger:
        jobs = ledger.jobs()
    assert len(jobs) == 2 and {job.state for job in jobs} == {state}
    assert all(str(error) in job.message for job in jobs)


def test_a_job_that_is_cancelled_while_it_makes_molecules_continues_later(
    made: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: None
) -> None:
    monkeypatch.setitem(job._UNIT_SIZES, "molecules", 1)  # or all are made when one is
    data = str(tmp_path / "data")

    def cancel(progress: JobProgress) -> None:
        with closing(Ledger(ledger_url("", data))) as ledger:
            if len(jobs := ledger.jobs()) == 2 and progress.good:
                ledger.request_cancel(jobs[0].job_id)

    stopped = prepare_again(made.raw, Path(data), progress=cancel)
    assert (stopped.state, stopped.snapshot) == ("cancelled", None)
    with closing(Ledger(ledger_url("", data))) as ledger:
        assert [entry.state for entry in ledger.jobs()] == ["cancelled", "cancelled"]
    assert prepare_again(made.raw, Path(data)).snapshot == made.report.snapshot


def test_the_command_line_gives_the_same_snapshot_elsewhere_and_lists_its_entries(
    made: Prepared, tmp_path: Path
) -> None:
    where = [str(made.raw / "mmcif"), str(tmp_path / "data")]
    arguments = ["--components", str(made.raw / "components.cif"), "--conformers", "2"]
    arguments += ["--alignments", str(made.raw / "msa"), "--executor", "local", "--workers", "1"]
    assert "4 of 4 files" in evofeed("entries", "prepare", *where, *arguments).out
    assert Dataset.open(str(tmp_path / "data")).digest == made.report.snapshot
    listed = evofeed("entries", "ls", tmp_path / "data", "--json").json
    assert listed[0]["entry_id"] == "s000-1"


LOADS = """
from evofeed.featurize.entries import work
from evofeed.store import Dataset

span = Dataset.open(sys.argv[1]).entries.span("components", "components")
for kind, file in zip(("alignment", "entry", "molecules"), sys.argv[2:]):
    seen = []
    work.EntriesTask(
        unit_id="one", kind=kind, dataset_uri=sys.argv[1], items=((kind, file),), components=span,
        projects=("boltz", "openfold3"),
    ).work(lambda name: seen.append((*loaded(), work.components_at.cache_info().currsize)))
    assert seen[0] == seen[1], seen[1][0] - seen[0][0]
"""


def test_a_worker_loads_and_compiles_what_it_needs_before_an_item_is_in_hand(
    made: Prepared, tmp_path: Path
) -> None:
    """Seconds, on a slow machine a minute, that count against no entry's deadline."""
    data = shutil.copytree(made.data, tmp_path / "data")
    files = (made.raw / "msa/s000_1/uniref90_hits.a3m", made.raw / "mmcif/s000.cif", "LIG")
    subprocess.run([sys.executable, "-c", LOADED + LOADS, data, *files], check=True)


def test_a_broken_file_is_listed_with_its_reason_and_the_others_are_published(
    tmp_path: Path, inside: None
) -> None:
    raw, data = tmp_path / "raw", tmp_path / "data"
    write_entries(raw, 2, residues=10)
    (raw / "mmcif" / "bad.cif").write_text("data_bad\n_entry.id bad\n")
    dated = raw / "mmcif" / "s001.cif"
    dated.write_text(dated.read_text().replace("_pdbx_audit_revision_history", "_pdbx_other"))
    strict = prepare_again(raw, data, conformers=1, options={"max_broken": 0.2})
    assert (strict.exit_code, strict.snapshot) == (1, None)
    assert "1 of 3 entries are left out, more than max_broken 0.2 allows" in strict.message
    report = prepare_again(raw, data, conformers=1)  # of what is done already
    assert (report.state, report.resumed) == ("published", report.units)
    assert {item["chain_id"]: "no atoms" in item["message"] for item in report.broken} == {
        "bad": True
    }
    assert "openfold3 does not accept it: no _pdbx_audit_revision_history" in report.notes["s001"]
    dataset = Dataset.open(str(data))
    assert list(dataset.entries) == ["s000-1", "s001-1"]
    assert dataset.entries.table["tokens_openfold3"].to_pylist()[1] == -1
    assert dataset.entries.table["tokens_boltz"].to_pylist()[1] > 0
    dropped = [item["entry"] for item in dataset.manifest.config["entries"]["dropped"]]
    assert dropped == ["bad"]


def test_clusters_without_a_polymer_of_the_input_are_named(
    made: Prepared, tmp_path: Path, inside: None
) -> None:
    for members, expected in (("9ABC_1\n", "no polymer is in a cluster of"), ("S000_1\n", "")):
        (tmp_path / "clusters").write_text(members)
        clusters = str(tmp_path / "clusters")
        report = prepare_again(made.raw, tmp_path / "data", projects=("boltz",), conformers=1,
                               clusters=clusters)  # fmt: skip
        assert report.state == "published"
        assert report.message.startswith(expected) and bool(report.message) == bool(expected)


def test_nothing_is_published_if_no_entry_is_good_or_garbage_is_collected(
    tmp_path: Path, inside: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, data = tmp_path / "raw", tmp_path / "data"
    with pytest.raises(InputError, match="no mmCIF file here"):
        structure_files(str(tmp_path))
    write_entries(raw, 1, residues=10)
    monkeypatch.setattr(driver, "_PATIENCE", 0.3)
    with hold(open_storage(str(data)), "gc", "one"), pytest.raises(JobError, match="garbage is"):
        prepare_again(raw, data)
    assert not list(data.glob("shards/*"))
    (raw / "mmcif" / "s000.cif").write_text("data_s000\n_entry.id s000\n")
    report = prepare_again(raw, data)
    assert (report.exit_code, report.snapshot) == (1, None)
    assert "none of 1 entries" in report.message


def test_two_jobs_into_one_ref_hold_a_lease_each(tmp_path: Path, inside: None) -> None:
    leases_of: list[set[str]] = []
    leases = (tmp_path / "data" / "leases").glob

    def look(_: object) -> None:
        leases_of[-1].update(path.name for path in leases("job-*"))

    for name in ("first", "second"):
        write_entries(tmp_path / name, 1, residues=10)
        leases_of.append(set())
        prepare_again(tmp_path / name, tmp_path / "data", progress=look)
    (first_lease,), (second_lease,) = leases_of
    assert first_lease != second_lease


def test_alignments_of_two_files_keep_every_row_and_its_species() -> None:
    entries = Dataset.open(dataset_uri()).entries
    (name,) = entries.table["alignments"].to_pylist()[1]
    alignment = entries.alignment(name)
    assert alignment.sources == ("uniprot_hits", "uniref90_hits")
    assert np.bincount(alignment.row_source).tolist() == [41, 61]
    assert len(alignment.species) == 12
    assert alignment.deletion_count.tolist() == [2] * 34


def test_rows_equal_but_for_gaps_have_one_number_another_query_is_refused(tmp_path: Path) -> None:
    path, other_query = (tmp_path / name for name in ("uniref90_hits.a3m", "b.a3m"))
    path.write_text(">q\nACDE\n>one\nA-DE\n>two\nADE-\n>three\nAcDE-\n>four\nACDE\n")
    assert read_alignment([str(path)]).row_gapless.tolist() == [0, 1, 1, 0, 0]
    other_query.write_text(">q\nACE\n")
    with pytest.raises(MsaError, match=r"b\.a3m"):
        read_alignment([str(path), str(other_query)])


def test_conformers_are_the_same_each_time_and_differ_from_each_other(tmp_path: Path) -> None:
    (tmp_path / "c.cif").write_text(COMPONENTS.read_text())
    table = read_components(tmp_path / "c.cif")
    first, second = (component_molecule(table["LYS"], 3) for _ in range(2))
    assert first.origin == "computed"
    assert np.array_equal(first.molecule.position, second.molecule.position)
    assert first.molecule.position.shape == (3, 10, 3)
    assert not np.allclose(first.molecule.position[0], first.molecule.position[1], atol=0.1)
    phe = component_molecule(table["PHE"], 1).molecule
    assert np.array_equal(phe.orders[0], np.arange(len(phe.name)))
    assert all(sorted(order) == list(range(len(phe.name))) for order in phe.orders.tolist())

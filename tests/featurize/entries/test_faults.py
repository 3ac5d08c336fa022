"""A job of entries killed, poisoned, repaired and run again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import evofeed
from tests.featurize.job.stage import kill_at_call, reap_orphans, run_forked, wait_for
from tests.inside import units_inside
from tests.synthetic_entries import prepare_again

from evofeed.base.errors import InputError
from evofeed.featurize import discover
from evofeed.featurize.entries import job, work
from evofeed.featurize.entries.input import EntriesInput, alignment_items
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.job import JobReport
from evofeed.featurize.job.ledger import Ledger
from evofeed.store import Dataset
from evofeed.store.storage import LocalStorage
from evofeed.synth import write_entries


def prepare(raw: Path, data: Path, **changes: Any) -> JobReport:
    """The files of a folder prepared by two workers, an entry a unit."""
    before, job._UNIT_SIZES = job._UNIT_SIZES, {"entry": 1, "alignment": 1, "molecules": 8}  # type: ignore[misc]
    try:
        return prepare_again(
            raw, data, {"workers": 2, **changes}, projects=("boltz",), conformers=None
        )
    finally:
        job._UNIT_SIZES = before  # type: ignore[misc]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four made-up entries."""
    folder = tmp_path_factory.mktemp("raw")
    write_entries(folder, 4, residues=8)
    return folder


@pytest.fixture(scope="module")
def undisturbed(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the undisturbed run, in this process: later ones, forked, find all loaded."""
    with units_inside():
        report = prepare(raw, tmp_path_factory.mktemp("undisturbed"))
    assert report.snapshot
    return report.snapshot


def test_of_a_search_only_what_it_has_now_is_taken(tmp_path: Path) -> None:
    (tmp_path / "search.db").write_text(">query\nMKV\n>query\nMAV\n")
    files = {"MKV": [["uniref90_hits.a3m", 0, 11]], "MAV": [["uniref90_hits.a3m", 11, 11]]}
    for names in (["MKV", "MAV"], ["MAV"]):  # of the second search one sequence is gone
        index = {name: {"sequence": name, "files": files[name]} for name in names}
        (tmp_path / "search.index").write_text(json.dumps(index))
        items, left_out = alignment_items(str(tmp_path))
        assert sorted(Path(path).read_text()[7:10] for _, path in items) == sorted(names)
        assert not left_out


def _driver_dies(raw: Path, data: Path, mark: Path, owner: Any, name: str, nth: int) -> None:
    pid = os.fork()
    if not pid:
        kill_at_call(owner, name, "before", nth, mark)
        os._exit(prepare(raw, data).exit_code)
    code = wait_for(pid)
    assert (mark.exists(), code) == (True, -signal.SIGKILL)
    reap_orphans()


def test_a_driver_killed_as_molecules_are_made_and_before_the_ref_moves_gives_the_same_snapshot(
    raw: Path, undisturbed: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"

    def act() -> JobReport:
        _driver_dies(raw, data, tmp_path / "one", Ledger, "finish", 9)
        _driver_dies(raw, data, tmp_path / "two", LocalStorage, "swap", 1)
        return prepare(raw, data)

    report = run_forked(act)
    assert (report.snapshot, report.broken) == (undisturbed, ())
    Dataset.open(str(data)).verify()


def test_an_entry_that_kills_every_worker_costs_one_line_and_a_worker_killed_once_nothing(
    raw: Path, tmp_path: Path
) -> None:
    data, prepare_entry = tmp_path / "data", work.prepare_entry

    def deadly(*args: Any, path: str, **kwargs: Any) -> Any:
        if path.endswith("s001.cif"):
            os.kill(os.getpid(), signal.SIGSEGV)
        return prepare_entry(*args, path=path, **kwargs)

    def act() -> JobReport:
        work.prepare_entry = deadly  # type: ignore[assignment]
        kill_at_call(work, "component_molecule", "before", 1, tmp_path / "mark")
        return prepare(raw, data)

    report = run_forked(act)
    assert [item["chain_id"] for item in report.broken] == ["s001"]
    assert "SIGSEGV" in report.broken[0]["message"]
    assert report.lost_workers == 3
    entries = Dataset.open(str(data)).entries
    assert list(entries) == ["s000-1", "s002-1", "s003-1"]
    assert {"LIG", "ALA"} <= set(entries.molecules("boltz"))


def test_an_entry_in_two_files_is_taken_from_the_first_and_the_other_is_listed(
    tmp_path: Path, inside: None
) -> None:
    again = tmp_path / "raw"
    write_entries(again, 3, residues=8)
    text = (again / "mmcif" / "s000.cif").read_text()
    (again / "mmcif" / "zzz.cif").write_text(text)  # another unit
    (again / "mmcif" / "more").mkdir()
    (again / "mmcif" / "more" / "s002.cif").write_text(text)  # another file of that name
    report = prepare(again, tmp_path / "data")
    listed = {item["chain_id"]: item["message"] for item in report.broken}
    message = "entry s000-1 is in more/s002.cif too"
    assert listed == {"zzz": message, "s000": message}
    entries = list(Dataset.open(str(tmp_path / "data")).entries)
    assert entries == ["s000-1", "s001-1", "s002-1"]


def test_links_to_nothing_or_in_a_circle_and_names_that_are_no_text_are_listed(
    tmp_path: Path, inside: None
) -> None:
    write_entries(tmp_path, 1, residues=8)
    for folder in ("msa/other", "msa/locked", "mmcif/locked"):
        (tmp_path / folder).mkdir()
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    for file in ("mmcif/loop.cif", "mmcif/GONE.CIF", "msa/s000_1/x.a3m", "msa/other/x.a3m"):
        (tmp_path / file).symlink_to("loop.cif" if "loop" in file else "nowhere")
    (tmp_path / "mmcif" / os.fsdecode(b"\xef.cif")).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        report = prepare(tmp_path, tmp_path / "data")
    assert report.num_good == 1
    reasons = {item["chain_id"]: item["message"].partition(": ")[0] for item in report.broken}
    loop, text = dict.fromkeys(("loop", "locked"), "cannot be read"), {"?": "not UTF-8"}
    gone = dict.fromkeys(("GONE", "alignment-s000_1"), "no such file")
    rows = {
        "alignment-other": f"{tmp_path}/msa/other/x.a3m",
        "alignment-locked": f"{tmp_path}/msa/locked",
    }
    assert reasons == {**text, **rows, **loop, **gone}
    problems: list[InputError] = []
    discover(tmp_path / "mmcif", problems=problems)
    assert ["Too many levels" in str(item) for item in problems].count(True) == 1


def test_jobs_run_and_retry_continue_entries_by_the_arguments_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: None
) -> None:
    raw, data = tmp_path / "raw", tmp_path / "data"
    write_entries(raw, 2, residues=8)
    good = (raw / "mmcif" / "s001.cif").read_text()
    (raw / "mmcif" / "s001.cif").write_text("data_bad\n_entry.id bad\n")
    monkeypatch.chdir(tmp_path)
    source = EntriesInput(
        structures="raw/mmcif", components="raw/components.cif", projects=("boltz",)
    )
    first = prepare_entries(source, "data")
    assert [item["chain_id"] for item in first.broken] == ["s001"]
    monkeypatch.chdir("/")
    jobs = evofeed("jobs", "status", data, "--json").json
    assert {item["state"] for item in jobs} == {"published"}
    assert evofeed("jobs", "run", data, "--json").json["snapshot"] == first.snapshot
    (raw / "mmcif" / "s001.cif").write_text(good)
    assert evofeed("jobs", "retry", data, "--json").json["broken"] == []
    assert list(Dataset.open(str(data)).entries) == ["s000-1", "s001-1"]

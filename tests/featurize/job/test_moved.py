"""Inputs and datasets that lie elsewhere now: what is done stays done, and nothing is mixed up."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.alignment_dbs import write_alignment_db
from tests.featurize.job.stage import checksums, on_stage, run, small_units
from tests.featurize.job.test_templates_again import used_by_some, used_templates

from evofeed.featurize import FeaturizeConfig, discover
from evofeed.featurize.job import inputs, run_job, template_use
from evofeed.featurize.job.inputs import KnownInputs
from evofeed.featurize.job.units import make_plan
from evofeed.store import Dataset


def as_db(folder: Path) -> None:
    """Make an alignment_db of the flattened alignments of a folder."""
    chains = sorted((folder / "alignments").iterdir())
    write_alignment_db(chains, folder / "alignment_db")
    shutil.rmtree(folder / "alignments")


@pytest.mark.parametrize("layout", ["alignments", "db"])
def test_a_moved_input_is_not_done_again_and_read_once_only(
    raw: Path, tmp_path: Path, layout: str
) -> None:
    here, there, data = tmp_path / "here" / "raw", tmp_path / "there", tmp_path / "data"
    shutil.copytree(raw, here)
    if layout == "db":
        as_db(here)
    inside = "alignments" if layout == "alignments" else ""
    first = on_stage(lambda: run(here / inside, data))
    here.rename(there)
    moved = on_stage(lambda: run(there / inside, data))
    assert (moved.snapshot, moved.resumed) == (first.snapshot, moved.units)

    def without_reading() -> Any:
        inputs.read_bytes = template_use.read_bytes = None  # type: ignore[assignment]
        return run(there / inside, data)

    assert on_stage(without_reading).resumed == first.units


def swap_letters(file: Path) -> None:
    """Another content of the same size and time."""
    stat, text = file.stat(), file.read_text()
    file.write_text(text.replace("MGYP", "MGYQ"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.read_text() != text


def test_inputs_that_differ_in_content_alone_are_told_apart_by_their_folders(
    raw: Path, tmp_path: Path
) -> None:
    one, other, data = tmp_path / "one", tmp_path / "other", tmp_path / "data"
    for folder in (one, other):
        shutil.copytree(raw, folder)  # with sizes and times
    swap_letters(sorted(other.glob("alignments/*/mgnify_hits.sto"))[3])
    first = on_stage(lambda: run(one, data, ref="one"))
    second = on_stage(lambda: run(other, data, ref="other"))
    assert second.resumed == second.units - 1
    fresh = on_stage(lambda: run(other, tmp_path / "fresh", ref="other"))
    assert second.snapshot == fresh.snapshot != first.snapshot
    again = on_stage(lambda: run(one, data, ref="one"))
    assert (again.snapshot, again.resumed) == (first.snapshot, again.units)
    other.rename(tmp_path / "third")  # both are known: it is the other one
    third = on_stage(lambda: run(tmp_path / "third", data, ref="other"))
    assert (third.snapshot, third.resumed) == (second.snapshot, third.units)


def test_inputs_never_read_are_told_apart_by_their_folders(raw: Path, tmp_path: Path) -> None:
    units = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        shutil.copytree(raw, folder)
        known = KnownInputs(str(folder))
        with small_units():
            plan = make_plan(discover(str(folder)), FeaturizeConfig(), None, known)
        units.append({unit.unit_id for unit in plan.units})
    assert len(units[0]) == len(units[1]) == 6
    assert not units[0] & units[1]


def test_template_files_that_changed_when_they_were_moved_are_noticed(
    raw: Path, tmp_path: Path
) -> None:
    here, there, data = tmp_path / "here", tmp_path / "there", tmp_path / "data"
    shutil.copytree(raw, here)
    shutil.copytree(here / "mmcif", here / "template_mmcif")
    on_stage(lambda: run(here, data))
    used = used_templates(data)
    name = used_by_some(used)
    here.rename(there)
    file = there / "template_mmcif" / name
    file.write_text("data_broken\n" + file.read_text())
    moved = on_stage(lambda: run(there, data))
    assert moved.resumed == moved.units - sum(name in names for names in used) < moved.units
    on_stage(lambda: run(there, tmp_path / "fresh"))
    assert checksums(data) == checksums(tmp_path / "fresh")


def test_input_and_dataset_may_be_written_in_any_way(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(raw, tmp_path / "raw")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(raw / "mmcif", tmp_path / "templates")
    ways: list[tuple[str, str, Any]] = [
        ("raw", "data", "templates"),
        ("./raw/", "data/", Path("templates")),
        (f"{tmp_path}/raw", f"file://{tmp_path}/data", tmp_path / "templates"),
    ]

    def act(raw_uri: str, data_uri: str, templates: Any) -> Any:
        finder = {"template_mmcif_dir": templates}
        with small_units():
            return run_job(raw_uri, data_uri, executor="local", discover_args=finder)

    reports = [on_stage(lambda way=way: act(*way)) for way in ways]
    assert len({report.snapshot for report in reports}) == 1
    assert [report.resumed for report in reports] == [0, 6, 6]


def test_a_dataset_beside_its_input_is_not_taken_for_structures(tmp_path: Path) -> None:
    (tmp_path / "one.a3m").write_text(">q\nACDEFGHIKL\n")
    for where in ({}, {"ledger": str(tmp_path / "ledger.sqlite")}):
        first = on_stage(lambda where=where: run(tmp_path, tmp_path / "data", **where))
        again = on_stage(lambda where=where: run(tmp_path, tmp_path / "data", **where))
        assert (again.snapshot, again.resumed) == (first.snapshot, first.units)


def test_two_datasets_in_one_ledger_each_get_all_chains(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    ledger = str(tmp_path / "ledger.sqlite")
    for name in ("one", "other"):
        report = on_stage(lambda name=name: run(raw, tmp_path / name, ledger=ledger))
        assert (report.snapshot, report.resumed) == (honest[0], 0)
        assert Dataset.open(str(tmp_path / name)).verify(deep=True) == []
    again = on_stage(lambda: run(raw, tmp_path / "one", ledger=ledger))
    assert again.resumed == again.units

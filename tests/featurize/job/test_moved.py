"""Inputs and datasets that lie elsewhere now: what is done stays done, and nothing is mixed up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import on_stage, run, small_units

from evofeed.featurize.job import run_job
from evofeed.store import Dataset


def test_a_moved_input_is_done_again_and_gives_the_same_snapshot(
    raw: Path, done: Path, honest: tuple[str, Any], tmp_path: Path
) -> None:
    copy = shutil.copytree(raw, tmp_path / "raw")
    moved = on_stage(lambda: run(copy, done))
    assert (moved.snapshot, moved.resumed) == (honest[0], 0)
    again = on_stage(lambda: run(copy, done))
    assert (again.snapshot, again.resumed) == (honest[0], again.units)


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

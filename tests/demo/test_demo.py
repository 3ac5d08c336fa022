"""The demos as a stranger runs them, only smaller: one command, a report, nothing left behind."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import exit_code
from tests.inside import units_inside

from evofeed.demo import complexes, entries, path
from evofeed.featurize import FeaturizeConfig
from evofeed.featurize.assembly_commands import add_complexes


def processes_mentioning(text: str) -> list[str]:
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        command = b" ".join(words).decode(errors="replace")
        if text in command and int(folder.name) != os.getpid():
            commands.append(command)
    return commands


def run_demo(*args: str) -> dict[str, object]:
    command = [sys.executable, "-m", "evofeed.cli", "demo", "--json", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.system
def test_the_demo_goes_the_whole_path_and_leaves_nothing_running(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    report = run_demo("--out", str(out), "--chains", "4", "--steps", "16")
    assert report["chains"] == 4
    assert report["quarantined"] == 0
    assert report["loss_last"] < report["loss_first"]  # type: ignore[operator]
    assert json.loads((out / "report.json").read_text()) == report
    pictures = report["pictures"]
    assert isinstance(pictures, list)
    assert len(pictures) == 2
    assert all(Path(p).read_bytes().startswith(b"\x89PNG") for p in pictures)
    end = time.monotonic() + 120
    while left := processes_mentioning(str(tmp_path)):  # killed, if not yet gone
        assert time.monotonic() < end, left
        time.sleep(0.1)
    again = path.featurize(path.simulate(out / "raw", 4, None), out / "dataset", None)
    assert again["snapshot"] == report["snapshot"], "an earlier demo is continued, not redone"
    assert again["chains_per_second"] == 0


@pytest.mark.slow
def test_the_demo_of_complexes_trains_predicts_and_draws(tmp_path: Path) -> None:
    said: list[str] = []
    with units_inside():
        report = complexes.run_complexes(tmp_path, complexes=1, steps=4, say=said.append)
    assert (report["complexes"], report["left_out"], report["steps"]) == (1, 0, 4)
    assert report["loss_last"] < report["loss_first"]
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG")
    assert all(0 <= score <= 1 for score in (*report["lddt_ca"], *report["dockq"], *report["iptm"]))
    assert report["dockq"][0] != report["dockq"][1]
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert [line.partition(":")[0] for line in said] == [
        "synth", "featurize", "assemblies", "serve", "train", "predict", "draw",
    ]  # fmt: skip
    raw = str(tmp_path / "raw")
    again = add_complexes(raw, report["dataset"], FeaturizeConfig(), quiet=True)
    assert again["snapshot"] == report["snapshot"], "an earlier demo is continued, not redone"


@pytest.mark.slow
def test_the_demo_of_entries_gives_batches_of_all_three_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = functools.partial(entries.run_entries, count=3, epoch=2)
    monkeypatch.setattr(entries, "run_entries", fewer)
    with units_inside():
        assert exit_code("demo", "--all-atom", "--out", str(tmp_path), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["entries"] == 3
    assert report["batches"] == {"openfold3": 2, "boltz": 2, "protenix": 2}
    assert report["left_out"] > 0
    assert Path(report["report"]).is_file()

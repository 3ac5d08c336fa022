"""The demo as a stranger runs it, only smaller: one command, a report, nothing left behind."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evofeed.cli import main
from evofeed.demo import path
from evofeed.featurize import job
from evofeed.featurize.job import run_job


def processes_mentioning(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        command = b" ".join(words).decode(errors="replace")
        if text in command and int(folder.name) != os.getpid():
            found.append(command)
    return found


def run_demo(*args: str) -> dict[str, object]:
    command = [sys.executable, "-m", "evofeed.cli", "demo", "--json", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.system
def test_the_demo_goes_the_whole_path_and_leaves_nothing_running(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    report = run_demo("--out", str(out), "--chains", "4", "--steps", "24")
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


@pytest.mark.system
def test_the_demo_runs_on_real_files(
    tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = functools.partial(run_job, workers=1)
    monkeypatch.setattr(job, "run_job", lambda *a, **k: local(*a, **k | {"executor": "local"}))
    inputs = golden / "data" / "inputs"
    report = path.run_demo(tmp_path / "demo", raw=inputs, steps=16)
    alignments = [folder for folder in (inputs / "alignments").iterdir() if folder.is_dir()]
    assert (report["chains"], report["quarantined"]) == (len(alignments), 0)
    assert report["loss_last"] < report["loss_first"]


def test_an_input_that_is_no_folder_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", "--input", str(tmp_path / "none")])
    assert end.value.code == 2
    assert "none" in "".join(capsys.readouterr().err.replace("│", "").split())  # may be wrapped

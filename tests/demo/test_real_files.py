"""The demo on recorded files."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from evofeed.demo import path
from evofeed.featurize import job
from evofeed.featurize.job import run_job


@pytest.mark.system
def test_the_demo_runs_on_real_files(
    tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = functools.partial(run_job, workers=1)
    monkeypatch.setattr(job, "run_job", lambda *a, **k: local(*a, **k | {"executor": "local"}))
    inputs = golden / "data" / "inputs"
    report = path.run_demo(tmp_path / "demo", raw=inputs, steps=8)
    alignments = [folder for folder in (inputs / "alignments").iterdir() if folder.is_dir()]
    assert (report["chains"], report["quarantined"]) == (len(alignments), 0)
    assert report["loss_last"] < report["loss_first"]

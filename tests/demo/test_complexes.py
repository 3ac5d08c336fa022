"""The demo of complexes, smaller: one is learnt, its picture is drawn, and what is said is so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evofeed.demo import complexes
from evofeed.featurize.job.run import run_job
from evofeed.store import Dataset


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def featurize(raw: Path, dataset: Path, say: Any) -> None:
        run_job(str(raw), str(dataset), executor="local", workers=1)

    monkeypatch.setattr(complexes, "featurize", featurize)


@pytest.mark.slow
def test_the_demo_of_complexes_trains_predicts_and_draws(tmp_path: Path, without_ray: None) -> None:
    said: list[str] = []
    report = complexes.run_complexes(tmp_path, complexes=1, steps=8, say=said.append)
    assert (report["complexes"], report["left_out"], report["steps"]) == (1, 0, 8)
    assert report["loss_last"] < report["loss_first"]
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG")
    assert all(0 <= one <= 1 for one in (*report["lddt_ca"], *report["dockq"], *report["iptm"]))
    assert report["dockq"][0] != report["dockq"][1]
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert [line.partition(":")[0] for line in said] == [
        "synth", "assemblies", "serve", "train", "predict", "draw",
    ]  # fmt: skip
    assert complexes._add(tmp_path / "raw", tmp_path / "dataset", None) == 0
    dataset = Dataset.open(tmp_path / "dataset")
    assert dataset.digest == report["snapshot"], "an earlier demo is continued, not redone"

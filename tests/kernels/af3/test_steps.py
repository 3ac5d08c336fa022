"""Whole steps and predictions of the projects' own code, as the benchmarks run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kernels.af3.benchmark import PROJECTS, benchmark
from tests.synthetic_entries import dataset_uri
from tests.trainer.forked import run_ranks


def measured(folder: Path, script: str, project: str, *more: str) -> list[dict[str, Any]]:
    """Rows of a process of its own: packages that a model does not call are stood in for."""
    if not (PROJECTS / project).is_dir():
        pytest.skip("make projects")
    words = [dataset_uri(), "--project", project, "--tiny", *more]
    words += ["--out", str(folder / "rows.json")]
    run_ranks(1, benchmark, script, words, folder=folder)
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())["rows"]
    return rows


@pytest.mark.parametrize("project", ["boltz", "openfold3", "protenix"])
@pytest.mark.slow
def test_losses_of_steps_are_the_projects_own(project: str, tmp_path: Path) -> None:
    # Boltz has the most of its own around a fused block: fairscale's checkpoints.
    ways = ["project", "recorded", *(["fused"] if project == "boltz" else [])]
    rows = measured(tmp_path, "af3_step.py", project, "--losses", "2", "--ways", *ways)
    assert [row["how"].split()[0] for row in rows] == ways
    for row in rows:
        assert row["losses"] == pytest.approx(rows[0]["losses"], rel=1e-4), row["how"]


@pytest.mark.slow
def test_a_prediction_is_the_projects_own(tmp_path: Path) -> None:
    ways = ("--ways", "project", "fused")
    own, fused = measured(tmp_path, "af3_predict.py", "protenix", "--repeats", "1", *ways)
    assert own["pairs"] == 0.0 < fused["pairs"] < 1e-5
    assert fused["single"] < 1e-5
    assert fused["rmsd"] < 1e-5 * fused["spread"]

"""Whole training steps of the projects' own code, as the benchmark runs them, before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.synthetic_entries import dataset_uri
from tests.trainer.forked import run_script

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("project", ["boltz", "openfold3", "protenix"])
@pytest.mark.slow
def test_losses_of_steps_are_the_projects_own(project: str, tmp_path: Path) -> None:
    """A process of its own: packages that a model does not call are stood in for."""
    if not (ROOT / ".projects" / project).is_dir():
        pytest.skip("make projects")
    out, ways = tmp_path / "step.json", ("project", "recorded")
    run_script(
        ROOT / "benchmarks" / "af3_step.py", dataset_uri(), "--project", project,
        "--tiny", "--losses", "2", "--ways", *ways, "--out", str(out), folder=tmp_path,
    )  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    assert [row["how"] for row in rows] == ["project", "recorded blocks"]
    for row in rows:
        assert row["losses"] == pytest.approx(rows[0]["losses"], rel=1e-4), row["how"]

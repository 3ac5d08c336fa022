"""Whole training steps of the projects' own code, as the benchmark runs them, before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.synthetic_entries import dataset_uri

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("project", ["boltz", "openfold3", "protenix"])
@pytest.mark.slow
def test_losses_of_steps_are_the_projects_own(project: str, tmp_path: Path) -> None:
    """A process of its own: packages that a model does not call are stood in for."""
    if not (ROOT / ".projects" / project).is_dir():
        pytest.skip("make projects")
    out, ways = tmp_path / "step.json", ("project", "fused", "recorded")
    subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "af3_step.py", dataset_uri(), "--project", project,
         "--tiny", "--losses", "2", "--ways", *ways, "--out", out],
        check=True, env=os.environ | {"TRITON_INTERPRET": "1"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    assert [row["how"] for row in rows] == ["project", "fused", "recorded blocks"]
    for row in rows:
        assert row["losses"] == pytest.approx(rows[0]["losses"], rel=1e-4), row["how"]

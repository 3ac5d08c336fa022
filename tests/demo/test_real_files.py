"""The demo on recorded files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.featurize.test_layouts import flattened, small_chains
from tests.inside import units_inside

from evofeed.demo import path


@pytest.mark.system
def test_the_demo_runs_on_real_files(tmp_path: Path, golden: Path) -> None:
    flattened(tmp_path / "raw")
    with units_inside():
        report = path.run_demo(tmp_path / "demo", raw=tmp_path / "raw", steps=4)
    assert (report["chains"], report["quarantined"]) == (len(small_chains()), 0)
    assert report["loss_last"] < report["loss_first"]

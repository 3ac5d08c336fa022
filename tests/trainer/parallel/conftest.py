"""What the tests of shared samples have in common: one start of four processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trainer.forked import run_ranks
from tests.trainer.parallel.ranks import main


@pytest.fixture(scope="session")
def four_ranks(tiny_dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `ranks.py` filled: `found.json`, and a run in `run`."""
    out = tmp_path_factory.mktemp("ranks")
    run_ranks(4, main, out, tiny_dataset, folder=out / "logs")
    return out

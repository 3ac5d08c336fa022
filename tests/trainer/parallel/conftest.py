"""What the tests of shared samples have in common: one start of four processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import once_a_run
from tests.trainer.forked import run_ranks
from tests.trainer.parallel.ranks import main


@pytest.fixture(scope="session")
def four_ranks(tiny_dataset: str) -> Path:
    """The folder that `ranks.py` filled: `found.json`, and a run in `run`."""

    def made(out: Path) -> None:
        run_ranks(4, main, out, tiny_dataset, folder=out / "logs")

    return once_a_run("four-ranks", made)

"""What the tests of shared samples have in common: one start of four processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def four_ranks(tiny_dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `ranks.py` filled: `found.json`, and a run in `run`."""
    out = tmp_path_factory.mktemp("ranks")
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1",
    }  # fmt: skip
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    script = Path(__file__).with_name("ranks.py")
    done = subprocess.run(
        [sys.executable, *command, str(script), str(out), tiny_dataset],
        env=environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return out

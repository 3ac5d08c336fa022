"""The kernels for Hopper compile where there is no such card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evofeed.kernels.runtime.backend import HAS_GLUON


@pytest.mark.skipif(not HAS_GLUON, reason="needs Triton 3.6")
def test_the_kernels_compile_for_hopper_without_one(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("hopper_compile.py")
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    # products, in steps of 16: none was unrolled or split
    assert run.stdout.split() == [
        "6", "18", "30", "4", "4", "6", "18", "4", "13", "42", "28",
        "16", "16", "28", "16", "8", "12", "96", "24", "44", "24", "96", "64",
    ]  # fmt: skip

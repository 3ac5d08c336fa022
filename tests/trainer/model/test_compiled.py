"""What a recorded run compiles gives the numbers of the plain operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_compiled_structure_and_its_losses_give_equal_numbers() -> None:
    script = Path(__file__).with_name("compiled_structure.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["numbers"] > 30 and found["graphs"] >= 7
    assert found["worst"] < 1e-3
    assert found["eager"]

"""Cards that nothing was tuned on: every operator's kernels compile for them and fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evofeed.kernels

pytest.importorskip("triton")

LIMITS = {"sm_80": 166912, "sm_89": 101376, "sm_100": 232448, "gfx942": 65536}
"""Shared memory of a program, bytes: A100, L40 and RTX 4090, B200, MI300."""
OPS = Path(evofeed.kernels.__file__).parent / "ops"
ON_HOPPER = {"delta_kernel", "projection_sums_kernel"}
"""Launched beside kernels laid out for Hopper alone."""


def test_every_kernel_compiles_and_fits() -> None:
    script = Path(__file__).with_name("cards_compile.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    limits = [argument for card, limit in LIMITS.items() for argument in (card, str(limit))]
    done = subprocess.run(
        [sys.executable, str(script), *limits], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    known = {name for path in OPS.glob("*/*triton.py") for name in _kernels(path)}
    for card in LIMITS:
        sizes = {kernel: int(size) for of, kernel, size in rows if of == card}
        assert max(sizes.values()) <= LIMITS[card], sizes
        assert known - ON_HOPPER <= sizes.keys()


def _kernels(path: Path) -> list[str]:
    return re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)

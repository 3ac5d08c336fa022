"""Cards that nothing was tuned on: the kernels of a pair block compile for them and fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

LIMITS = {"sm_80": 166912, "sm_89": 101376, "sm_100": 232448, "gfx942": 65536}
"""Shared memory of a program, bytes: A100, L40 and RTX 4090, B200, MI300."""


@pytest.mark.parametrize(
    "card",
    ["sm_80", "gfx942", *(pytest.param(c, marks=pytest.mark.slow) for c in ("sm_89", "sm_100"))],
)
def test_every_kernel_of_a_pair_block_compiles_and_fits(card: str) -> None:
    script = Path(__file__).with_name("cards_compile.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script), card], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    name, *found = done.stdout.split()
    sizes = {kernel: int(size) for kernel, size in (pair.split("=") for pair in found)}
    assert name == card and len(sizes) > 10
    assert max(sizes.values()) <= LIMITS[card], sizes

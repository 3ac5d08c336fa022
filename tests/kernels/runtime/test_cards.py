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


@pytest.mark.parametrize(
    "card",
    ["sm_80", "gfx942", *(pytest.param(c, marks=pytest.mark.slow) for c in ("sm_89", "sm_100"))],
)
def test_every_kernel_compiles_and_fits(card: str) -> None:
    script = Path(__file__).with_name("cards_compile.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script), card, str(LIMITS[card])], env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = {kernel: int(size) for kernel, size in (p.split("=") for p in done.stdout.split())}
    assert max(sizes.values()) <= LIMITS[card], sizes
    known = {name for path in OPS.glob("*/*triton.py") for name in _kernels(path)}
    assert known - ON_HOPPER <= sizes.keys()


def _kernels(path: Path) -> list[str]:
    return re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)

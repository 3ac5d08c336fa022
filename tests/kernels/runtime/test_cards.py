"""Every operator's kernels compile where there is no such card, and fit what was not tuned on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evofeed.kernels
from evofeed.kernels.runtime.backend import HAS_GLUON

pytest.importorskip("triton")

LIMITS = {"sm_80": 166912, "sm_89": 101376, "sm_100": 232448, "gfx942": 65536}
"""Shared memory of a program, bytes: A100, L40 and RTX 4090, B200, MI300."""
ROOT = Path(__file__).resolve().parents[3]
OPS = Path(evofeed.kernels.__file__).parent / "ops"
ON_HOPPER = {"delta_kernel", "projection_sums_kernel"}
"""Launched beside kernels laid out for Hopper alone."""


def _printed(script: str, *arguments: str) -> str:
    """What a script beside this file prints where nothing is interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    words = [sys.executable, "-m", f"tests.kernels.runtime.{script}", *arguments]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_kernel_compiles_and_fits() -> None:
    limits = [argument for card, limit in LIMITS.items() for argument in (card, str(limit))]
    rows = [line.split() for line in _printed("cards_compile", *limits).splitlines()]
    known = {name for path in OPS.glob("*/*triton.py") for name in _kernels(path)}
    for card in LIMITS:
        sizes = [(int(size), kernel) for of, kernel, size in rows if of == card]
        assert max(sizes)[0] <= LIMITS[card], max(sizes)
        assert known - ON_HOPPER <= {kernel for _, kernel in sizes}


def _kernels(path: Path) -> list[str]:
    return re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)


@pytest.mark.skipif(not HAS_GLUON, reason="needs Triton 3.6")
def test_the_kernels_compile_for_hopper_without_one() -> None:
    # products, in steps of 16: none was unrolled or split
    assert _printed("hopper_compile").split() == [
        "6", "18", "30", "4", "4", "6", "18", "4", "13", "42", "28",
        "16", "28", "16", "8", "12", "24", "44", "24", "96", "64",
    ]  # fmt: skip

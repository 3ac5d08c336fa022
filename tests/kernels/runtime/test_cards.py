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
PRODUCTS = {
    "backward_kernel": [16, 22, 28, 30, 42], "bias_gradient_kernel": [4, 8],
    "forward_kernel": [5, 6, 8, 9, 13], "gated_output_grad_kernel": [8, 12, 24],
    "gated_output_kernel": [4, 8, 16], "swiglu_rows_kernel": [32, 96],
    "swiglu_weights_kernel": [16, 24], "transition_grad_kernel": [24, 44],
    "triangle_in_grad_kernel": [8, 16], "triangle_out_grad_kernel": [16, 28],
    "triangle_out_kernel": [8, 16], "triangle_projections_kernel": [64],
}  # fmt: skip
"""Of these in steps of 16, with other sizes of tiles: none was unrolled or split."""


@pytest.fixture(scope="module")
def compiled() -> list[tuple[str, str, int]]:
    """Card, kernel and a number, as a script beside this file prints where nothing is interpreted:
    the shared memory that it takes, on Hopper its products."""
    limits = LIMITS | ({"sm_90": 232448} if HAS_GLUON else {})
    words = [argument for card, limit in limits.items() for argument in (card, str(limit))]
    script = [sys.executable, "-m", "tests.kernels.runtime.cards_compile", *words]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(script, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = (line.split() for line in done.stdout.splitlines())
    return [(card, kernel, int(number)) for card, kernel, number in rows]


def test_every_kernel_compiles_and_fits(compiled: list[tuple[str, str, int]]) -> None:
    known = {name for path in OPS.glob("*/*triton.py") for name in _kernels(path)}
    for card in LIMITS:
        sizes = [(size, kernel) for of, kernel, size in compiled if of == card]
        assert max(sizes)[0] <= LIMITS[card], max(sizes)
        assert known - ON_HOPPER <= {kernel for _, kernel in sizes}


def _kernels(path: Path) -> list[str]:
    return re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)


@pytest.mark.skipif(not HAS_GLUON, reason="needs Triton 3.6")
def test_the_kernels_compile_for_hopper_without_one(compiled: list[tuple[str, str, int]]) -> None:
    found: dict[str, set[int]] = {}
    for card, kernel, products in compiled:
        if card == "sm_90":
            found.setdefault(kernel, set()).add(products)
    assert {kernel: sorted(products) for kernel, products in found.items()} == PRODUCTS

"""The SwiGLU transition of pairs beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import mask, module_rows, rand
from tests.kernels.af3.openfold3 import SwiGLUTransition


def section(peers: bool) -> Iterator[Row]:
    for residues in (256, 384):
        yield from module_rows(
            f"pairs {residues}", SwiGLUTransition(128, 4),
            lambda n=residues: [rand(1, n, n, 128), mask(1, n, n)], peers,
        )  # fmt: skip

"""The pair-weighted average of AF3's MSA module beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import mask, module_rows, rand
from tests.kernels.af3.openfold3 import MSAPairWeightedAveraging


def section(peers: bool) -> Iterator[Row]:
    for sequences, residues in ((512, 256), (1024, 384)):
        yield from module_rows(
            f"{sequences} x {residues}", MSAPairWeightedAveraging(64, 32, 128, 8),
            lambda s=sequences, n=residues: [
                rand(1, s, n, 64), rand(1, n, n, 128), mask(1, n, n)
            ], peers,
        )  # fmt: skip

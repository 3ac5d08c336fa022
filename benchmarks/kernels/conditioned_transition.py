"""The conditioned transition of the diffusion transformer's tokens beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import module_rows, rand
from tests.kernels.af3.openfold3 import ConditionedTransitionBlock


def section(peers: bool) -> Iterator[Row]:
    for copies, tokens in ((48, 384), (16, 768)):
        yield from module_rows(
            f"{copies} x {tokens}", ConditionedTransitionBlock(768, 384, 2),
            lambda n=copies, t=tokens: [rand(1, n, t, 768), rand(1, n, t, 384)], peers,
        )  # fmt: skip

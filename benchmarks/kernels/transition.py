"""The transitions of MSA and pairs beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import mask, module_rows, rand

from evofeed.trainer.model.transition import MSATransition, PairTransition


def section(peers: bool) -> Iterator[Row]:
    yield from module_rows(
        "MSA 128x256", MSATransition(256, 4),
        lambda: [rand(1, 128, 256, 256), mask(1, 128, 256)], peers,
    )  # fmt: skip
    yield from module_rows(
        "pairs 256", PairTransition(128, 4),
        lambda: [rand(1, 256, 256, 128), mask(1, 256, 256)], peers,
    )  # fmt: skip

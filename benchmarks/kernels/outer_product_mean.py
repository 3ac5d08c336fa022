"""The outer product mean beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import mask, module_rows, rand

from evofeed.trainer.model.outer_product_mean import OuterProductMean


def section(peers: bool) -> Iterator[Row]:
    for S, R, C in ((128, 256, 256), (512, 384, 256), (1024, 256, 64)):
        yield from module_rows(
            f"{S}x{R}x{C}", OuterProductMean(C, 128, 32),
            lambda S=S, R=R, C=C: [rand(1, S, R, C), mask(1, S, R)], peers,
        )  # fmt: skip

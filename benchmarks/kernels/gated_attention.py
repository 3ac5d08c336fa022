"""A whole attention of AF2, norm to residual, beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import mask, module_rows, rand

from evofeed.trainer.model.msa_attention import MSARowAttentionWithPairBias
from evofeed.trainer.model.triangle import TriangleAttentionStartingNode


def section(peers: bool) -> Iterator[Row]:
    for S, R in ((128, 256), (512, 384)):
        yield from module_rows(
            f"row {S}x{R}", MSARowAttentionWithPairBias(256, 128, 32, 8),
            lambda S=S, R=R: [rand(1, S, R, 256), rand(1, R, R, 128), mask(1, S, R)], peers,
        )  # fmt: skip
    for R in (256, 384):
        yield from module_rows(
            f"triangle {R}", TriangleAttentionStartingNode(128, 32, 4),
            lambda R=R: [rand(1, R, R, 128), mask(1, R, R)], peers,
        )  # fmt: skip

"""Global column attention of the extra MSA beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import mask, module_rows, rand

from evofeed.trainer.model.msa_attention import MSAColumnGlobalAttention


def section(peers: bool) -> Iterator[Row]:
    for S, R in ((1024, 256), (5120, 384)):
        yield from module_rows(
            f"{S}x{R}", MSAColumnGlobalAttention(64, 8, 8),
            lambda S=S, R=R: [rand(1, S, R, 64), mask(1, S, R)], peers,
        )  # fmt: skip

"""Attention and blocks of the diffusion transformer, all copies with one z, beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row
from benchmarks.kernels.common import module_rows, rand
from tests.kernels.af3.openfold3 import AttentionPairBias, DiffusionTransformerBlock


def section(peers: bool) -> Iterator[Row]:
    for copies, tokens in ((48, 384), (16, 768)):
        yield from module_rows(
            f"{copies} x {tokens}", AttentionPairBias(768, 768, 768, 384, 128, 48, 16, True),
            lambda n=copies, t=tokens: [
                rand(1, n, t, 768), rand(1, 1, t, t, 128), rand(1, n, t, 384)
            ],
            peers,
        )  # fmt: skip
        yield from module_rows(
            f"block, {copies} x {tokens}",
            DiffusionTransformerBlock(768, 384, 128, 48, 16, 2, True, None, None),
            lambda n=copies, t=tokens: [
                rand(1, n, t, 768), rand(1, n, t, 384), rand(1, 1, t, t, 128)
            ],
            peers,
        )  # fmt: skip

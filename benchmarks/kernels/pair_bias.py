"""The attention bias of the pairs beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernels.common import both_ways, rand
from torch import Tensor

from evofeed.kernels import pair_bias, reference


def section(peers: bool) -> Iterator[Row]:
    for R in (256, 384):
        sets = [[rand(1, R, R, 128), rand(128), rand(128), rand(8, 128)] for _ in range(3)]
        ops: dict[str, Callable[..., Tensor]] = {"evofeed": pair_bias}
        if peers:
            torch.compiler.reset()
            compiled = torch.compile(reference.pair_bias, dynamic=False)
            ops |= {"torch eager": reference.pair_bias, "torch.compile": compiled}
        for who, op in ops.items():
            yield {"case": f"{R} residues", "who": who, **both_ways(op, sets, [0, 1, 2, 3])}

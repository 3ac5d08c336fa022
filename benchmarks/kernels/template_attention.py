"""Attention to templates, between its projections, beside PyTorch and a copy of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernels.common import both_ways, rand
from torch import Tensor

from evofeed.kernels import reference, template_attention


def section(peers: bool) -> Iterator[Row]:
    for R in (256, 384):
        sets = [[rand(1, R, R, 64), *(rand(1, 4, R, R, 64) for _ in range(2))] for _ in range(2)]

        def op(which: Callable[..., Tensor]) -> Callable[..., Tensor]:
            return lambda q, k, v: which(q, k, v, 4)

        ops = {"evofeed": op(template_attention)}
        if peers:
            torch.compiler.reset()
            compiled = torch.compile(op(reference.template_attention), dynamic=False)
            ops |= {"torch eager": op(reference.template_attention), "torch.compile": compiled}
        for who, function in ops.items():
            case = f"{R} residues, 4 templates"
            yield {"case": case, "who": who, **both_ways(function, sets, [0, 1, 2])}

"""Masked softmax beside a copy, PyTorch and its compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.gpu_times import Row, gpu_times
from benchmarks.kernels.common import BF16, DEVICE, both_ways, rand
from torch import Tensor

from evofeed.kernels import masked_softmax, reference


def section(peers: bool) -> Iterator[Row]:
    for R, H, N in ((256, 4, 256), (384, 4, 384), (512, 4, 512), (128, 8, 256)):

        def inputs(R: int = R, H: int = H, N: int = N) -> Any:
            return [[rand(1, R, H, N, N), rand(1, H, N, N)] for _ in range(2)]

        mask = (torch.rand(1, R, N, device=DEVICE) > 0.1).to(BF16)
        case = f"[1, {R}, {H}, {N}, {N}] bfloat16"

        def op(which: Any, mask: Tensor = mask) -> Callable[..., Tensor]:
            return lambda x, bias: which(x, mask, bias)

        copies = [(pair[0], torch.empty_like(pair[0])) for pair in inputs()]
        yield {
            "case": case, "who": "device copy",
            "forward": gpu_times([lambda a=a, b=b: b.copy_(a) for a, b in copies]),
        }  # fmt: skip
        del copies
        ops = {"evofeed": op(masked_softmax)}
        if peers:
            torch.compiler.reset()
            ops["torch eager"] = op(reference.masked_softmax)
            ops["torch.compile"] = torch.compile(op(reference.masked_softmax), dynamic=False)
        for who, function in ops.items():
            yield {"case": case, "who": who, **both_ways(function, inputs(), [0, 1], wall=False)}

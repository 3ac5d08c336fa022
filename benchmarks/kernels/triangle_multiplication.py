"""Triangle multiplication beside PyTorch and its compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernels.common import BF16, DEVICE, both_ways, rand
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.swap.parameters import triangle_weights
from evofeed.trainer.model.triangle import (
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
)


def section(peers: bool) -> Iterator[Row]:
    for outgoing, N in ((True, 256), (False, 256), (True, 384), (False, 384)):
        cls = TriangleMultiplicationOutgoing if outgoing else TriangleMultiplicationIncoming
        module = cls(128, 128).to(DEVICE, BF16)
        parameters = list(triangle_weights(module).tensors())
        case = f"{'outgoing' if outgoing else 'incoming'} {N}"

        def sets(N: int = N, parameters: Any = parameters) -> Any:
            mask = (torch.rand(1, N, N, device=DEVICE) > 0.1).to(BF16)
            return [[rand(1, N, N, 128), mask, *parameters] for _ in range(3)]

        def op(which: Any, outgoing: bool = outgoing) -> Callable[..., Tensor]:
            return lambda z, mask, *w: which(z, TriangleWeights(*w), outgoing=outgoing, mask=mask)

        grads = [0, *range(2, 18)]
        ops = {"evofeed": op(triangle_multiplication)}
        if peers:
            torch.compiler.reset()
            ops["torch eager"] = op(reference.triangle_multiplication)
            ops["torch.compile"] = torch.compile(ops["torch eager"], dynamic=False)
        for who, function in ops.items():
            yield {"case": case, "who": who, **both_ways(function, sets(), grads)}

"""Layer norm beside a copy, PyTorch and its compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.gpu_times import Row, gpu_times, peak_mb, walls_us
from benchmarks.kernels.common import BF16, DEVICE, calls_of, rand
from torch import Tensor

from evofeed.kernels import layer_norm, reference

NORM_SHAPES = [
    (1, 256, 256, 128), (1, 132, 256, 256), (1, 1, 256, 256, 64), (1, 128, 256, 256),
    (1, 256, 132, 256), (1, 256, 128, 256), (1, 256, 384), (1, 1024, 256, 64),
    (1, 256, 1024, 64), (1, 4, 256, 256, 64), (1, 256, 256), (200, 128, 1024),
]  # fmt: skip


def section(peers: bool) -> Iterator[Row]:
    for shape in NORM_SHAPES:
        for dtype in (BF16, torch.float32):
            C, numel = shape[-1], torch.Size(shape).numel()
            count = max(2, min(8, int(2e8 / (numel * dtype.itemsize))))

            def inputs(shape: Any = shape, dtype: Any = dtype, C: int = C, n: int = count) -> Any:
                return [
                    [rand(*shape, dtype=dtype), *(rand(C, dtype=torch.float32) for _ in "wb")]
                    for _ in range(n)
                ]  # fmt: skip

            case = f"{list(shape)} {str(dtype)[6:]}"
            source, target = (
                rand(numel, dtype=dtype),
                torch.empty(numel, dtype=dtype, device=DEVICE),
            )
            more = [(rand(numel, dtype=dtype), torch.empty_like(target)) for _ in range(count - 1)]
            pairs = [(source, target), *more]
            yield {
                "case": case, "who": "device copy",
                "forward": gpu_times([lambda a=a, b=b: b.copy_(a) for a, b in pairs]),
            }  # fmt: skip
            ops: dict[str, Callable[..., Tensor]] = {"evofeed": layer_norm}
            if peers:
                torch.compiler.reset()
                compiled = torch.compile(reference.layer_norm, dynamic=False)
                ops |= {"torch eager": reference.layer_norm, "torch.compile": compiled}
            calls = {who: calls_of(op, inputs(), [0, 1, 2]) for who, op in ops.items()}
            rows = {
                who: {"forward": gpu_times(forward), "both": gpu_times(full)}
                for who, (forward, full) in calls.items()
            }
            for n, clock in enumerate(("forward_wall", "both_wall")):
                for who, us in walls_us({who: both[n] for who, both in calls.items()}).items():
                    rows[who][clock] = us
            for who, row in rows.items():
                yield {"case": case, "who": who, **row, "peak_mb": peak_mb(calls[who][1][0])}

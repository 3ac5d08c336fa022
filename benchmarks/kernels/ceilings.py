"""What this card does at best: copies and a product."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_times import Row, gpu_times
from benchmarks.kernels.common import rand


def section(peers: bool) -> Iterator[Row]:
    del peers
    for megabytes in (4.2, 8.4, 16.8, 33.6, 67.1, 1073.7):
        numel = int(megabytes * 1e6 / 2)
        count = max(2, min(16, int(400 / megabytes)))
        sources, targets = ([rand(numel) for _ in range(count)] for _ in range(2))
        pairs = list(zip(sources, targets, strict=True))
        times = gpu_times([lambda a=a, b=b: b.copy_(a) for a, b in pairs])
        yield {
            "case": f"copy {megabytes} MB",
            "gb_s": round(4 * numel / times["us"] / 1e3),
            **times,
        }
    a, b = rand(8192, 8192), rand(8192, 8192)
    times = gpu_times([lambda: a @ b], 20)
    yield {"case": "matmul 8192 bf16", "tflop_s": round(2 * 8192**3 / times["us"] / 1e6), **times}

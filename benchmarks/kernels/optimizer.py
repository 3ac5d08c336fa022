"""Clipping, Adam and the moving average of 93 million weights beside PyTorch's fused Adam."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.gpu_times import Row, gpu_times, graphed, wall_us
from benchmarks.kernels.common import BF16, DEVICE, rand

from evofeed.kernels.ops.optimizer.op import FusedAdamEMA


def section(peers: bool) -> Iterator[Row]:
    N = 93_229_082
    for dtype in (torch.float32, BF16):
        buffers = [torch.randn(N, device=DEVICE) for _ in range(3)]
        fused = FusedAdamEMA(
            buffers[0], rand(N, dtype=dtype), buffers[1], buffers[1].square(), buffers[2],
            torch.empty(N, dtype=BF16, device=DEVICE), max_norm=0.1,
        )  # fmt: skip
        fused.rate.fill_(1e-3)
        case = f"93.2M, gradient {str(dtype)[6:]}"
        row = {"case": case, "who": "evofeed", **gpu_times([fused.step], 20)}
        yield row | {"wall": wall_us([fused.step], 20), "graph": gpu_times([graphed(fused.step)])}
    if not peers:
        return
    flat = torch.randn(N, device=DEVICE).requires_grad_()
    flat.grad = torch.randn(N, device=DEVICE)
    ema, low = torch.randn(N, device=DEVICE), torch.empty(N, dtype=BF16, device=DEVICE)
    adam = torch.optim.Adam([flat], lr=1e-3, fused=True, capturable=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_([flat], 0.1, foreach=True)
        adam.step()
        with torch.no_grad():
            ema.lerp_(flat, 0.001)
            low.copy_(flat)

    row = {"case": "93.2M, one flat tensor", "who": "torch fused Adam", **gpu_times([step], 20)}
    yield row | {"wall": wall_us([step], 20)}

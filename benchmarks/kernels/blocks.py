"""Whole blocks, some in a row: eager, compiled, fused, as a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.gpu_times import Row, gpu_times, graphed, peak_mb, wall_us
from benchmarks.kernels.common import BF16, DEVICE, rand, randomise
from torch import Tensor, nn

from evofeed.kernels import to_fused
from evofeed.trainer.model.config import EvoformerConfig, ExtraMSAConfig
from evofeed.trainer.model.evoformer import EvoformerBlock, ExtraMSABlock

BLOCKS = {  # class, sequences, residues, sizes, channels of the MSA, blocks in the stack
    "evoformer 128x256": (EvoformerBlock, 128, 256, EvoformerConfig(), 256, 4),
    "evoformer 512x384": (EvoformerBlock, 512, 384, EvoformerConfig(), 256, 2),
    "extra MSA 1024x256": (ExtraMSABlock, 1024, 256, ExtraMSAConfig(), 64, 2),
}


class Stack:
    """Some blocks in a row, their inputs, and one training step through them."""

    def __init__(self, case: str, dtype: torch.dtype) -> None:
        cls, S, N, config, C, count = BLOCKS[case]
        self.count = count
        blocks = [randomise(cls(config, C, 128)).to(DEVICE, dtype) for _ in range(count)]
        self.blocks = nn.ModuleList(blocks)
        self.m = rand(1, S, N, C).requires_grad_()
        self.z = rand(1, N, N, 128).requires_grad_()
        self.masks = (
            (torch.rand(1, S, N, device=DEVICE) > 0.05).to(BF16),
            (torch.rand(1, N, N, device=DEVICE) > 0.05).to(BF16),
        )
        self.grads = (torch.randn_like(self.m), torch.randn_like(self.z))
        self.autocast = dtype is torch.float32

    def forward(self) -> tuple[Tensor, Tensor]:
        m, z = self.m, self.z
        with torch.autocast("cuda", BF16, enabled=self.autocast):
            for block in self.blocks:
                m, z = block(m, z, *self.masks)
        return m, z

    def step(self) -> None:
        torch.autograd.backward(self.forward(), self.grads)
        self.m.grad = self.z.grad = None
        for parameter in self.blocks.parameters():
            parameter.grad = None

    def inference(self) -> None:
        with torch.no_grad():
            self.forward()


def block_row(case: str, who: str, stack: Stack, with_graph: bool) -> Row:
    count = stack.count
    step, inference = gpu_times([stack.step], 10), gpu_times([stack.inference], 10)
    row: Row = {
        "case": case, "who": who, "blocks": count,
        "ms": round(step["us"] / count / 1e3, 3),
        "ms_q1_q3": [round(step[q] / count / 1e3, 3) for q in ("q1", "q3")],
        "forward_ms": round(inference["us"] / count / 1e3, 3),
        "wall_ms": round(wall_us([stack.step], 6) / count / 1e3, 3),
        "peak_mb": peak_mb(stack.step),
    }  # fmt: skip
    outputs = stack.forward()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    del outputs
    row["saved_mb_per_block"] = round((held - torch.cuda.memory_allocated()) / count / 1e6, 1)
    if with_graph:
        replay = graphed(stack.step)
        row["graph_ms"] = round(gpu_times([replay], 10)["us"] / count / 1e3, 3)
    return row


def section(peers: bool, only: str = "", compiled_too: bool = True) -> Iterator[Row]:
    for case in BLOCKS:
        if only and only not in case:
            continue
        for dtype in (BF16, torch.float32):
            kind = "bf16" if dtype is BF16 else "amp"
            torch.manual_seed(0)
            stack = Stack(case, dtype)
            if peers and kind == "bf16":
                yield block_row(case, "torch eager bf16", stack, False)
                if compiled_too:
                    torch.compiler.reset()
                    originals = list(stack.blocks)
                    compiled = [torch.compile(b, dynamic=False) for b in originals]
                    stack.blocks = compiled  # type: ignore[assignment]
                    parameters = [p for b in originals for p in b.parameters()]
                    stack.step = lambda s=stack, ps=parameters: compiled_step(s, ps)  # type: ignore[method-assign,misc]
                    yield block_row(case, "torch.compile bf16", stack, False)
                torch.manual_seed(0)
                stack = Stack(case, dtype)
            to_fused(stack.blocks)
            yield block_row(case, f"evofeed {kind}", stack, True)
            if kind == "bf16":
                yield {"case": case, "who": "evofeed kernels", "kernels": kernel_times(stack)}
            del stack
            torch.cuda.empty_cache()


def compiled_step(stack: Stack, parameters: list[nn.Parameter]) -> None:
    torch.autograd.backward(stack.forward(), stack.grads)
    stack.m.grad = stack.z.grad = None
    for parameter in parameters:
        parameter.grad = None


def kernel_times(stack: Stack) -> list[list[Any]]:
    """Microseconds and launches per block of every kernel in a step, longest first."""
    from torch.profiler import ProfilerActivity, profile

    stack.step()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        stack.step()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = {}
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = totals.setdefault(event.name[:90], [0.0, 0])
            entry[0] += event.device_time_total
            entry[1] += 1
    rows = [[n, round(t / stack.count, 1), c / stack.count] for n, (t, c) in totals.items()]
    return sorted(rows, key=lambda row: -row[1])[:45]

"""A training step on several cards, one of them slower: what the others lose by waiting for it.

    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/slowed_card.py --out slowed.json
    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/slowed_card.py --out proof.json \
        --preset tiny --device cpu --repeats 2

Each card its own samples (`data`), then all cards one sample (`axial`), as they are and with the
last card slowed. It is slowed by kernels that only spin, recorded with the rest: `data` before the
gradient's average, `axial` after every block of the MSA stacks, forward and backward, each as long
as its share of `--by` of a step. Every time is the slowest card's. `lost` is what a step takes
longer, over what the slow card itself takes longer: 1 is none but that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.axial import Ranks
from benchmarks.train_step import PRESETS, Case, Step, batch_of, forget, machine

from evofeed.trainer.parallel import stacks


class Spin:
    """Makes a device wait, on its own timeline."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.rate = device, 0.0
        if device.type == "cuda":
            cycles = 50_000_000
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(cycles)  # the first launch
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            torch.cuda.synchronize()
            self.rate = cycles / begin.elapsed_time(end)

    def __call__(self, ms: float) -> None:
        if ms and self.rate:
            torch.cuda._sleep(int(ms * self.rate))
        elif ms:
            time.sleep(ms / 1e3)


class Slow(torch.autograd.Function):
    """The same tensor, later; and its gradient too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wait: Callable[[], None]) -> Tensor:
        ctx.wait = wait
        wait()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.wait()
        return grad, None


def timed(
    options: argparse.Namespace, ranks: Ranks, part: str, spin: Spin, extra: float
) -> dict[str, Any]:
    """A step of `part`, the last card's longer by `extra` milliseconds."""
    began = time.perf_counter()
    forget(ranks.device)
    mine = extra if ranks.rank == ranks.size - 1 else 0.0
    cuda = ranks.device.type == "cuda"
    case = Case.parse("fused:bf16:graph:0" if cuda else "torch:fp32:eager:0")
    step = Step(case, options.preset, ranks.device, ranks.axis if part == "axial" else None)
    blocks = len(step.model.evoformer.blocks) + len(step.model.extra_msa_stack.blocks)
    gather, block = step.optimizer.gather, stacks.msa_block

    def average(samples: int) -> None:
        gather(samples)
        spin(mine)
        dist.all_reduce(step.optimizer.grad)
        step.optimizer.grad.div_(ranks.size)

    def slowed(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        m, z = block(*given, **named)
        return m, Slow.apply(z, lambda: spin(mine / (2 * blocks)))  # type: ignore[no-untyped-call]

    if part == "data":
        step.optimizer.gather = average  # type: ignore[method-assign]
    elif extra:
        stacks.msa_block = slowed
    try:
        batch = batch_of(options.preset, 0, ranks.device)
        for number in range(3):
            step.run(batch, number)
        if step.replay and step.replay.why_not:
            raise SystemExit(f"no CUDA graph: {step.replay.why_not}")
        dist.barrier()
        steps = ranks.slowest([sum(step.run(batch, 3 + n)) for n in range(options.repeats)])
    finally:
        stacks.msa_block = block
    return {
        "part": part, "slowed_by_ms": round(extra, 2),
        "step_ms": {
            "median": round(statistics.median(steps), 2), "min": round(min(steps), 2),
            "max": round(max(steps), 2),
        },
        "seconds_in_all": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--parts", nargs="+", default=["data", "axial"], choices=["data", "axial"])
    parser.add_argument("--by", type=float, default=0.1, help="how much slower a step of that card")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    options.one_gpu = False
    ranks = Ranks(options)
    spin = Spin(ranks.device)
    result: dict[str, Any] = {
        "benchmark": "slowed_card",
        "command": f"torchrun --nproc-per-node {ranks.size} benchmarks/slowed_card.py "
        f"--preset {options.preset} --by {options.by:g} --repeats {options.repeats}",
        "machine": machine(options), "cards": ranks.size, "by": options.by,
        "repeats": options.repeats, "preset": options.preset,
        "shapes": PRESETS[options.preset][1], "found": [],
    }  # fmt: skip

    def keep(row: dict[str, Any]) -> None:
        result["found"].append(row)
        if ranks.rank == 0:  # a later case that dies loses nothing
            print(json.dumps(row), flush=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")

    for part in options.parts:
        usual = timed(options, ranks, part, spin, 0.0)
        keep(usual)
        extra = options.by * usual["step_ms"]["median"]
        slowed = timed(options, ranks, part, spin, extra)
        longer = slowed["step_ms"]["median"] - usual["step_ms"]["median"]
        keep(slowed | {"lost": round(longer / extra, 3)})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

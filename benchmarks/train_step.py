"""Time of a whole training step of the model, part by part, with its memory peak.

    PYTHONPATH=src python benchmarks/train_step.py --recycles 0 3 --checkpointing no yes \
        --compile no yes --out benchmarks/results/train_step.json

One synthetic batch of the preset's shapes, forward with recycles, all losses,
backward, clipping, Adam and moving average. Parts are timed with CUDA events, so
they hold the gaps between launches too. Proof on a laptop:
`--preset tiny --device cpu --precision fp32 --repeats 2`.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evofeed.trainer import AlphaFold, AlphaFoldLoss, finetuning, initial_training, tiny
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.optim import OptimConfig
from evofeed.trainer.synthetic_batch import synthetic_batch

PARTS = ("forward", "loss", "backward", "optimizer")
PRESETS: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "tiny": (tiny, {"num_res": 32, "num_seq": 8, "num_extra_seq": 16, "num_templates": 2}),
    "initial_training": (
        initial_training,
        {"num_res": 256, "num_seq": 128, "num_extra_seq": 1024, "num_templates": 4},
    ),
    "finetuning": (
        finetuning,
        {"num_res": 384, "num_seq": 512, "num_extra_seq": 5120, "num_templates": 4},
    ),
}


class Clock:
    """Marks in time on the device; differences in milliseconds once it is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in itertools.pairwise(self.marks)]
        return [1e3 * (b - a) for a, b in itertools.pairwise(self.marks)]


class Step:
    """A model with its loss and optimizer, ready to be timed on batches."""

    def __init__(self, options: argparse.Namespace, *, compiled: bool) -> None:
        torch.manual_seed(0)
        model_config, loss_config = PRESETS[options.preset][0]()
        self.device = torch.device(options.device)
        self.bf16 = options.precision == "bf16"
        self.model = AlphaFold(model_config).to(self.device).train()
        if options.kernels == "fused":
            from evofeed.kernels import to_fused

            to_fused(self.model)
        self.loss = AlphaFoldLoss(loss_config)
        self.optimizer = FlatOptimizer(self.model, OptimConfig())
        if compiled:
            stacks = [self.model.evoformer, self.model.extra_msa_stack]
            if model_config.template is not None:
                stacks.append(self.model.template_embedder.template_pair_stack)
            for block in (block for stack in stacks for block in stack.blocks):
                block.compile(dynamic=False)

    def run(self, batch: dict[str, Tensor], number: int) -> list[float]:
        """One step; milliseconds of each of `PARTS`."""
        clock = Clock(self.device)
        self.optimizer.zero_grad()
        clock.mark()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            outputs = self.model(batch)
        clock.mark()
        loss, _ = self.loss(outputs, batch)
        clock.mark()
        loss.backward()
        clock.mark()
        self.optimizer.gather(1)
        self.optimizer.step(number)
        clock.mark()
        return clock.milliseconds()

    def measure(self, batch: dict[str, Tensor], warm_up: int, repeats: int) -> dict[str, Any]:
        """Median and spread of every part over `repeats` steps, and the memory peak."""
        for number in range(warm_up):
            self.run(batch, number)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps = [self.run(batch, warm_up + number) for number in range(repeats)]
        found: dict[str, Any] = {"step_ms": _spread([sum(step) for step in steps])}
        found |= {f"{part}_ms": _spread([s[i] for s in steps]) for i, part in enumerate(PARTS)}
        if self.device.type == "cuda":
            found["peak_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
        return found


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every combination asked for; a case that does not fit in memory says so."""
    shapes = dict(PRESETS[options.preset][1])
    for compiled in options.compile:
        step = Step(options, compiled=compiled == "yes")
        for checkpointing, recycles in itertools.product(options.checkpointing, options.recycles):
            case = {
                "recycles": recycles,
                "checkpointing": checkpointing == "yes",
                "compiled": compiled == "yes",
            }
            step.model.set_activation_checkpointing(checkpointing == "yes")
            batch = synthetic_batch(**shapes, no_recycling_iters=recycles, device=step.device)
            began = time.perf_counter()
            try:
                case |= step.measure(batch, options.warm_up, options.repeats)
            except torch.OutOfMemoryError as error:
                case["error"] = str(error).splitlines()[0]
                step.optimizer.zero_grad()
                torch.cuda.empty_cache()
            case["seconds_in_all"] = round(time.perf_counter() - began, 1)
            print(json.dumps(case), flush=True)
            yield case
        del step
        if options.device == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def operators_of(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """After the block: the operators with most device time in one profiled step."""
    found: list[dict[str, Any]] = []
    yield found
    if not options.profile:
        return
    step = Step(options, compiled=options.compile[-1] == "yes")
    step.model.set_activation_checkpointing(options.checkpointing[0] == "yes")
    batch = synthetic_batch(**PRESETS[options.preset][1], device=step.device)
    for number in range(options.warm_up):
        step.run(batch, number)
    with torch.profiler.profile() as profile:
        step.run(batch, options.warm_up)
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    for event in events[: options.profile]:
        ms = round(event.self_device_time_total / 1e3, 3)
        found.append({"operator": event.key, "device_ms": ms, "calls": event.count})


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Where and with what this was measured."""
    cuda = options.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=["bf16", "tf32", "fp32"], default="bf16")
    parser.add_argument("--kernels", choices=["torch", "fused"], default="torch")
    parser.add_argument("--recycles", type=int, nargs="+", default=[0])
    parser.add_argument("--checkpointing", choices=["no", "yes"], nargs="+", default=["no"])
    parser.add_argument("--compile", choices=["no", "yes"], nargs="+", default=["no"])
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", type=int, default=0, help="operators to list of one step")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    with operators_of(options) as operators:
        measured = list(cases(options))
    result = {
        "benchmark": "train_step",
        "command": " ".join(["python", *sys.argv]),
        "machine": machine(options),
        "preset": options.preset,
        "shapes": PRESETS[options.preset][1] | {"batch_size": 1},
        "precision": options.precision,
        "kernels": options.kernels,
        "warm_up": options.warm_up,
        "repeats": options.repeats,
        "cases": measured,
        "operators": operators,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

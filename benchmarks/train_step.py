"""Time of a whole training step of the model, part by part, with its memory peak and MFU.

    PYTHONPATH=src python benchmarks/train_step.py --out step.json \
        --cases torch:bf16:eager:0 fused:bf16:graph:0 fused:bf16:graph:3 torch:fp32:eager+ckpt:0
    PYTHONPATH=src python benchmarks/train_step.py --preset finetuning --out tuning.json \
        --cases fused:bf16:eager+ckpt:0

A case is kernels (`torch` or `fused`), precision (`bf16`, `tf32`, `fp32`), how it
runs (`eager`, `graph`, `compiled`: every block by torch.compile; `+ckpt` recomputes
activations) and passes without gradient. One synthetic batch of the preset's
shapes, forward with recycles, all losses, backward, clipping, Adam and moving
average. Parts are timed with CUDA events, so they hold the gaps between launches
too. Proof on a laptop: `--preset tiny --device cpu --cases torch:fp32:eager:1`.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.kernels import OnePass
from evofeed.trainer import (
    AlphaFold,
    AlphaFoldLoss,
    finetuning,
    initial_training,
    multimer,
    tiny,
    tiny_multimer,
)
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.model.compiled import compile_structure
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.losses import share_losses
from evofeed.trainer.parallel.parallelize import parallelize
from evofeed.trainer.report.run_report import peak_flops
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.graphs import Replay

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.trainer.synthetic_batch import synthetic_batch, synthetic_complex

PARTS = ("forward", "backward", "optimizer")
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
    "tiny_multimer": (
        tiny_multimer,
        {"num_res": 32, "num_seq": 8, "num_extra_seq": 16, "num_templates": 2, "num_chains": 3},
    ),
    "multimer": (
        multimer,
        {
            "num_res": 640, "num_seq": 508, "num_extra_seq": 2048, "num_templates": 4,
            "num_chains": 4,
        },
    ),
}  # fmt: skip
# Of one pass, and of one with its backward; counted on a CPU by evofeed.trainer.report.flops.
FLOPS = {
    "initial_training": (11973048897536.0, 35910420443136.0),
    "finetuning": (61778903783424.0, 185289081882624.0),
}


@dataclass(frozen=True)
class Case:
    """One way to run a step."""

    kernels: str
    precision: str
    how: str
    checkpointing: bool
    recycles: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """From `kernels:precision:how[+ckpt]:recycles`."""
        kernels, precision, how, recycles = text.split(":")
        how, _, ckpt = how.partition("+")
        return cls(kernels, precision, how, ckpt == "ckpt", int(recycles))


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


def batch_of(preset: str, recycles: int, device: torch.device) -> dict[str, Tensor]:
    """A synthetic batch of a preset's shapes."""
    shapes = PRESETS[preset][1]
    make = synthetic_complex if "num_chains" in shapes else synthetic_batch
    return make(**shapes, no_recycling_iters=recycles, device=device)  # type: ignore[operator]


class Step:
    """A model with its loss and optimizer, ready to be timed on batches.

    With an axis all its ranks run the same step together.
    """

    def __init__(
        self, case: Case, preset: str, device: torch.device, axis: Axis | None = None
    ) -> None:
        torch.manual_seed(0)
        self.case, self.device, self.axis = case, device, axis
        torch.backends.cuda.matmul.allow_tf32 = case.precision != "fp32"  # as `set_precision`
        chosen = PRESETS[preset][0]()
        model_config, loss_config = chosen.model, chosen.loss
        with device:  # initial weights drawn there: seconds less
            self.model = AlphaFold(model_config).train()
        self.model.set_activation_checkpointing(case.checkpointing)
        on_gpu = device.type == "cuda"
        if case.kernels == "fused":
            from evofeed.kernels import to_fused

            to_fused(self.model)
            if case.how == "graph" and on_gpu and axis is None:
                compile_structure(self.model.structure_module)
        if axis is not None:
            parallelize(self.model, axis)
        if case.how == "compiled":
            stacks = [self.model.evoformer, self.model.extra_msa_stack]
            stacks.append(self.model.template_embedder.template_pair_stack)
            for block in (block for stack in stacks for block in stack.blocks):
                block.compile(dynamic=False)
        self.loss = AlphaFoldLoss(loss_config)
        if axis is not None:
            share_losses(self.loss, axis)
        fused = case.kernels == "fused" and on_gpu
        self.optimizer = FlatOptimizer(self.model, OptimConfig(), fused=fused)
        self.one_pass = OnePass(1 if case.checkpointing or axis is not None else 32)  # as `Loop`
        self.replay = self._replay() if case.how == "graph" else None

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.case.precision == "bf16"
        )

    def _forward(self, batch: dict[str, Tensor], previous: Any = None) -> tuple[Tensor, Tensor]:
        with self._autocast(), self.one_pass:
            outputs = self.model(batch, previous)
        loss, _ = self.loss(outputs, batch)
        return loss, loss.detach()

    def _replay(self) -> Replay:
        def one_pass(batch: dict[str, Tensor], previous: Any) -> Any:
            with self._autocast(), self.one_pass:
                return self.model.recycle(batch, previous)

        return Replay(self._forward, one_pass, self.model.per_recycle, self.optimizer.backward)

    def run(self, batch: dict[str, Tensor], number: int) -> list[float]:
        """One step; milliseconds of each of `PARTS`."""
        clock = Clock(self.device)
        self.optimizer.zero_grad()
        clock.mark()
        if self.replay:
            self.last_loss = self.replay(batch, clock.mark)
        else:
            loss, self.last_loss = self._forward(batch)
            clock.mark()
            self.optimizer.backward(loss)
        clock.mark()
        self.optimizer.gather(1)
        if self.axis is not None and self.axis.group is not None:
            dist.all_reduce(self.optimizer.grad)
            self.optimizer.grad.div_(self.axis.size)
        self.last_norm = self.optimizer.step(number)
        clock.mark()
        return clock.milliseconds()

    def measure(self, batch: dict[str, Tensor], warm_up: int, repeats: int) -> dict[str, Any]:
        """Median and spread of every part over `repeats` steps, and the memory peak."""
        slow_start = self.case.how in ("graph", "compiled")  # the second step records or compiles
        for number in range(max(warm_up, 2 if slow_start else 1)):
            self.run(batch, number)
        steps = [self.run(batch, warm_up + number) for number in range(repeats)]
        if self.replay and self.replay.why_not:
            return {"error": f"no CUDA graph: {self.replay.why_not}"}
        found: dict[str, Any] = {"step_ms": _spread([sum(step) for step in steps])}
        found |= {f"{part}_ms": _spread([s[i] for s in steps]) for i, part in enumerate(PARTS)}
        if self.device.type == "cuda":  # of warm-up and recording too
            found["peak_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
        return found


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def measured(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """What a case takes; one that does not fit in memory says so."""
    began = time.perf_counter()
    device = torch.device(options.device)
    forget(device)
    found: dict[str, Any] = dict(vars(case))
    try:
        step = Step(case, options.preset, device)
        batch = batch_of(options.preset, case.recycles, device)
        found |= step.measure(batch, options.warm_up, options.repeats)
    except torch.OutOfMemoryError as error:
        found["error"] = str(error).splitlines()[0]
    if "step_ms" in found and options.preset in FLOPS and device.type == "cuda":
        one_pass, both = FLOPS[options.preset]
        rate = (case.recycles * one_pass + both) / found["step_ms"]["median"] * 1e3
        found["model_flops_per_second"] = rate
        peak = peak_flops(torch.cuda.get_device_name(), case.precision)
        found["mfu"] = round(rate / peak, 4) if peak else None
    found["seconds_in_all"] = round(time.perf_counter() - began, 1)
    print(json.dumps(found), flush=True)
    return found


def profiled(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The operators with most device time in one step of a case."""
    device = torch.device(options.device)
    step = Step(case, options.preset, device)
    batch = batch_of(options.preset, case.recycles, device)
    for number in range(2):
        step.run(batch, number)
    with torch.profiler.profile() as profile:
        step.run(batch, 2)
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    return [
        {"operator": e.key, "device_ms": round(e.self_device_time_total / 1e3, 3), "calls": e.count}
        for e in events[: options.profile]
    ]


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


def usual_step(device: torch.device) -> Case:
    """The step of which parts and kernels are timed: fused, in bf16, recorded where it can be."""
    return Case("fused", "bf16", "graph" if device.type == "cuda" else "eager", False, 0)


def times_of(step: Step, batch: dict[str, Tensor], repeats: int) -> list[float]:
    """Milliseconds of steps after three that record and warm up; of none on a CPU."""
    for number in range(3):
        step.run(batch, number)
    if step.device.type != "cuda":
        print("no GPU: the step runs, nothing was measured")
        return []
    return [sum(step.run(batch, 3 + number)) for number in range(repeats)]


def result_of(script: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the results of a script begin with."""
    return {
        "benchmark": Path(script).stem,
        "command": command(script),
        "machine": machine(options),
        "preset": options.preset,
        "shapes": PRESETS[options.preset][1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--cases", nargs="+", default=["torch:bf16:eager:0"])
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", type=int, default=0, help="operators to list, of the last")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    cases = [Case.parse(text) for text in options.cases]
    result: dict[str, Any] = {
        "benchmark": "train_step",
        "command": command(__file__),
        "machine": machine(options),
        "preset": options.preset,
        "shapes": PRESETS[options.preset][1] | {"batch_size": 1},
        "warm_up": options.warm_up,
        "repeats": options.repeats,
        "cases": [],
    }
    for case in cases:
        result["cases"].append(measured(case, options))
        if options.out:  # a later case that dies loses nothing
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.profile:
        result["operators"] = profiled(cases[-1], options)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


def command(script: str) -> str:
    """How a benchmark was called, but for where its result went."""
    words = sys.argv[1:]
    if "--out" in words:
        at = words.index("--out")
        words = words[:at] + words[at + 2 :]
    return " ".join([f"python benchmarks/{Path(script).name}", *words])


def forget(device: torch.device) -> None:
    """Memory of earlier cases is given back, and the peak is counted from here."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()

"""One sample on several GPUs: equality with one, time and memory of a step, what is not hidden.

    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/axial.py --out axial.json
    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/axial.py --out proof.json \
        --preset tiny --device cpu --repeats 1 --parts equal time
    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/axial.py --out one.json --one-gpu \
        --parts equal                                      # gloo: correctness alone

`equal`: loss and gradients of a few blocks at the preset's shapes, on the ranks of the axis and
on one, in float32 and in bfloat16 (whose own error, against float32 on one GPU, is beside it);
and of one GPU with itself where the Evoformer's outputs are nudged by a rounding of float32.
`exchange`: the exchanges of a block by themselves.
`time`: a whole step, forward, backward, mean of the gradient and update, on one GPU and shared;
then with the exchanges left out (what they cost beyond what is hidden), with `--more` also by
NCCL instead of the GPUs' own memory, and eagerly. Every time is the slowest rank's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import PRESETS, Case, Step, machine
from tests.trainer.synthetic_batch import synthetic_batch

from evofeed.kernels import PeerMemory
from evofeed.trainer import AlphaFold, AlphaFoldLoss
from evofeed.trainer.parallel import collectives
from evofeed.trainer.parallel import parallelize as parallel
from evofeed.trainer.parallel.axis import Axis, axial_group
from evofeed.trainer.parallel.parallelize import parallelize

FEW = 3  # blocks of the Evoformer in `equal`
ROUNDING = 2.0**-24  # of float32, relative


class Ranks:
    """This process among the ranks, on its device."""

    def __init__(self, options: argparse.Namespace) -> None:
        local = 0 if options.one_gpu else int(os.environ.get("LOCAL_RANK", "0"))
        cuda = options.device == "cuda"
        self.device = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        nccl = cuda and not options.one_gpu
        dist.init_process_group("nccl" if nccl else "gloo", device_id=self.device if nccl else None)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if options.one_gpu:
            self.axis = Axis(group=dist.group.WORLD, rank=self.rank, size=self.size)
            _through_the_cpu()
        else:
            self.axis = axial_group(self.size, self.size, self.device)

    def slowest(self, values: list[float]) -> list[float]:
        """Element by element the largest of all ranks."""
        numbers = torch.tensor(values, device=self.device, dtype=torch.float32)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        return numbers.tolist()

    def say(self, found: dict[str, Any]) -> dict[str, Any]:
        if self.rank == 0:
            print(json.dumps(found), flush=True)
        return found


def _through_the_cpu() -> None:
    """Gloo's exchanges by way of the CPU, for ranks that share a GPU."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> None:
            moved = [a.cpu() if isinstance(a, Tensor) else a for a in args]
            call(*moved, **kwargs)
            args[0].copy_(moved[0])

        return run

    collectives._all_gather = wrapped(collectives._all_gather)
    collectives._reduce_scatter = wrapped(collectives._reduce_scatter)
    dist.all_to_all_single = wrapped(dist.all_to_all_single)
    dist.all_reduce = wrapped(dist.all_reduce)


def equal(options: argparse.Namespace, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Largest relative differences of loss and gradients, shared against one GPU."""
    chosen = PRESETS[options.preset][0]()
    few = replace(chosen.model.evoformer, no_blocks=min(FEW, chosen.model.evoformer.no_blocks))
    config = replace(
        chosen.model, evoformer=few, extra_msa=replace(chosen.model.extra_msa, no_blocks=1)
    )
    batch = synthetic_batch(**PRESETS[options.preset][1], no_recycling_iters=1, device=ranks.device)
    loss = AlphaFoldLoss(chosen.loss)

    def nudged(module: Any, given: Any, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        draws = torch.Generator(ranks.device).manual_seed(3)
        noise = (torch.randn(x.shape, generator=draws, device=x.device) for x in made)
        return tuple(x * (1 + ROUNDING * n) for x, n in zip(made, noise, strict=True))

    def grads(precision: str, axis: Axis | None, nudge: bool = False) -> dict[str, Tensor]:
        torch.manual_seed(0)
        with ranks.device, torch.no_grad():  # AF2's start has zeros where gradients should flow
            model = AlphaFold(config).train()
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        if options.device == "cuda":
            from evofeed.kernels import to_fused

            to_fused(model)
        if axis is not None:
            parallelize(model, axis)
        if nudge:
            model.evoformer.register_forward_hook(nudged)
        torch.manual_seed(5)
        half = precision == "bf16"
        with torch.autocast(ranks.device.type, torch.bfloat16, enabled=half):
            outputs = model(batch)
        total, _ = loss(outputs, batch)
        total.backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        if axis is not None:
            for grad in found.values():
                dist.all_reduce(grad)
                grad.div_(ranks.size)
        return {"loss": total.detach(), **found}

    one, ours = grads("fp32", None), grads("fp32", ranks.axis)
    beside = grads("fp32", None, nudge=True)
    half_one, half_ours = grads("bf16", None), grads("bf16", ranks.axis)
    largest = max(v.abs().max().item() for n, v in one.items() if n != "loss")
    worst = {n: _difference(ours[n], one[n], 1e-3 * largest) for n in one}
    name = max(worst, key=lambda n: worst[n])
    alone = {n: _difference(beside[n], one[n], 1e-3 * largest) for n in one}
    alone_name = max(alone, key=lambda n: alone[n])

    def error(found: dict[str, Tensor]) -> float:
        """Root mean square over all gradients, relative."""
        of = sum((found[n] - one[n]).double().square().sum().item() for n in one if n != "loss")
        all_of = sum(one[n].double().square().sum().item() for n in one if n != "loss")
        return float((of / all_of) ** 0.5)

    yield ranks.say(
        {
            "part": "equal", "parameters": len(worst) - 1, "ranks": ranks.size,
            "fp32_loss": _difference(ours["loss"], one["loss"], 0.0),
            "fp32_worst_gradient": worst[name], "fp32_worst_name": name,
            "fp32_error_shared": error(ours),
            "fp32_nudged_worst_gradient": alone[alone_name], "fp32_nudged_worst_name": alone_name,
            "fp32_nudged_same_gradient": alone[name], "fp32_error_nudged": error(beside),
            "bf16_error_one": error(half_one), "bf16_error_shared": error(half_ours),
        }
    )  # fmt: skip


def _difference(ours: Tensor, theirs: Tensor, least: float) -> float:
    scale = max(theirs.abs().max().item(), least)
    return (ours - theirs).abs().max().item() / scale


def timed(
    options: argparse.Namespace, ranks: Ranks, preset: str, text: str, axis: Axis | None,
    beside: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A step's time, spread and memory; out of memory says so."""
    began = time.perf_counter()
    case = Case.parse(text)
    cuda = ranks.device.type == "cuda"
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {
        "part": "time", "preset": preset, "case": text, "axial": axis.size if axis else 1,
    }  # fmt: skip
    found |= {"beside": beside} if beside else {}
    error = ""
    steps: list[float] = []
    dist.barrier()
    try:
        step = Step(case, preset, ranks.device, axis)
        batch = synthetic_batch(
            **PRESETS[preset][1], no_recycling_iters=case.recycles, device=ranks.device
        )
        for number in range(3):
            step.run(batch, number)
        if step.replay and step.replay.why_not:
            error = f"no CUDA graph: {step.replay.why_not}"
        dist.barrier()
        steps = [sum(step.run(batch, 3 + n)) for n in range(options.repeats)]
    except torch.OutOfMemoryError as trouble:
        error = str(trouble).splitlines()[0]
    failed = ranks.slowest([float(bool(error))])[0]
    if failed:
        return ranks.say(found | {"error": error or "another rank's"})
    steps = ranks.slowest(steps)
    found["step_ms"] = {
        "median": round(statistics.median(steps), 2), "min": round(min(steps), 2),
        "max": round(max(steps), 2),
    }  # fmt: skip
    if not beside:
        found |= {"loss": step.last_loss.tolist(), "gradient_norm": float(step.last_norm)}
    if cuda:
        peak = ranks.slowest([torch.cuda.max_memory_allocated() / 2**30])[0]
        found["peak_gib"] = round(peak, 2)
    found["seconds_in_all"] = round(time.perf_counter() - began, 1)
    del step
    return ranks.say(found)


@contextmanager
def without_exchanges() -> Any:
    """Exchanges that send nothing: buffers of the right size, of whatever values."""
    kept = collectives._all_gather, collectives._reduce_scatter, dist.all_to_all_single
    through_memory = PeerMemory._run

    def nothing(received: Tensor, sent: Tensor, *args: Any, **kwargs: Any) -> None:
        n = min(received.numel(), sent.numel())
        received.view(-1)[:n].copy_(sent.view(-1)[:n])

    collectives._all_gather = collectives._reduce_scatter = nothing
    dist.all_to_all_single = nothing
    PeerMemory._run = lambda *args: None  # type: ignore[method-assign]
    look = parallel.checked
    parallel.checked = lambda axis, device: axis
    try:
        yield
    finally:
        collectives._all_gather, collectives._reduce_scatter, dist.all_to_all_single = kept
        PeerMemory._run = through_memory  # type: ignore[method-assign]
        parallel.checked = look


def times(options: argparse.Namespace, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """One GPU and shared, of every preset; then shared without exchanges, and by NCCL alone."""
    cpu = options.device == "cpu"
    presets = [options.preset] if cpu else options.presets
    how = "torch:fp32:eager:0" if cpu else "fused:bf16:graph:0"
    axis = replace(ranks.axis, memory=None) if options.nccl else ranks.axis
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for preset in presets:
        for name, way in (("one", None), ("shared", axis)):
            case = timed(options, ranks, preset, how, way)
            if "error" in case and not cpu:
                yield case
                case = timed(options, ranks, preset, how.replace("graph", "eager+ckpt"), way)
            yield case
            found[preset, name] = case
        pair = [found[preset, name].get("step_ms", {}).get("median") for name in ("one", "shared")]
        if all(pair):
            yield ranks.say(
                {
                    "part": "speed", "preset": preset, "axial": ranks.size,
                    "against_one": round(pair[0] / pair[1], 3),
                }
            )  # fmt: skip
    for preset in presets:
        with without_exchanges():
            case = found[preset, "shared"]["case"]
            yield timed(options, ranks, preset, case, axis, beside="without exchanges")
    if not cpu and options.more:
        for preset in presets:
            yield timed(
                options, ranks, preset, how, replace(axis, memory=None), beside="NCCL alone"
            )
        yield timed(options, ranks, presets[0], "fused:bf16:eager:0", axis)


EXCHANGES = {  # of a block at crop 256: shape of a rank's part of two, what is done, axes
    "MSA to columns": ((1, 64, 256, 256), "exchange", (-2, -3)),
    "MSA to rows": ((1, 128, 128, 256), "exchange", (-3, -2)),
    "pairs to columns": ((1, 128, 256, 128), "exchange", (-2, -3)),
    "triangle b": ((128, 1, 128, 256), "gather", (-2,)),
    "triangle product": ((128, 1, 256, 256), "reduce", (-2,)),
    "bias": ((1, 4, 128, 256), "gather", (-2,)),
}


def exchanges(options: argparse.Namespace, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Every exchange of a block by itself, by NCCL and through memory: equal, and how fast."""
    ways = {"nccl": replace(ranks.axis, memory=None), "memory": ranks.axis}
    for name, (shape, what, dims) in EXCHANGES.items():
        torch.manual_seed(ranks.rank)
        x = torch.randn(shape, device=ranks.device).bfloat16()
        found: dict[str, Any] = {"part": "exchange", "name": name, "mb": x.numel() * 2e-6}
        made = {}
        for way, axis in ways.items():

            def call(axis: Axis = axis, what: str = what, dims: Any = dims, x: Any = x) -> Tensor:
                if what == "exchange":
                    return collectives.exchanged(x, axis, *dims, axis.size * x.shape[dims[1]])
                if what == "gather":
                    return collectives.gathered(x, axis, *dims, axis.size * x.shape[dims[0]])
                return collectives.reduced(x, axis, *dims)

            made[way] = call()
            found[f"{way}_us"] = ranks.slowest([_microseconds(call, ranks)])[0]
        found["largest_difference"] = _difference(made["memory"], made["nccl"], 0.0)
        yield ranks.say(found)


def _microseconds(call: Callable[[], Tensor], ranks: Ranks) -> float:
    """Of one of many in a recording (on a CPU of one call)."""
    many = 20
    if ranks.device.type == "cpu":
        began = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - began)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(many):
            call()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / (5 * many)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--presets", nargs="+", default=["initial_training", "finetuning"])
    parser.add_argument("--parts", nargs="+", default=["equal", "time"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--nccl", action="store_true", help="not through the GPUs' own memory")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks on one GPU, by gloo")
    parser.add_argument("--more", action="store_true", help="NCCL alone, eager steps")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    ranks = Ranks(options)
    result: dict[str, Any] = {
        "benchmark": "axial", "command": f"torchrun benchmarks/axial.py {' '.join(sys.argv[1:])}",
        "machine": machine(options), "ranks": ranks.size,
        "through_memory": ranks.axis.memory is not None,
        "shapes": PRESETS[options.preset][1],
        "nccl": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}, "found": [],
    }  # fmt: skip
    parts: dict[str, Callable[..., Any]] = {"equal": equal, "time": times, "exchange": exchanges}
    for found in (row for part in options.parts for row in parts[part](options, ranks)):
        result["found"].append(found)
        if ranks.rank == 0:  # a later case that dies loses nothing
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

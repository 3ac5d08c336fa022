"""One sample on several GPUs: equality with one, time and memory of a step, what is not hidden.

    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/axial.py --out axial.json
    PYTHONPATH=src torchrun --nproc-per-node 2 benchmarks/axial.py --out proof.json \
        --preset tiny --device cpu --repeats 1 --parts equal time

`equal`: loss, what each stack gives and gets back, and all gradients of a few blocks at the
preset's shapes: how far one GPU and the ranks of the axis are from one GPU in float64.
`time`: a whole step, forward, backward, mean of the gradient and update, on one GPU and shared;
then with the exchanges left out: what they cost beyond what is hidden. Every time is the slowest
rank's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import PRESETS, Case, Step, forget, machine
from tests.trainer.synthetic_batch import synthetic_batch

from evofeed.kernels import PeerMemory
from evofeed.trainer import AlphaFold, AlphaFoldLoss
from evofeed.trainer.parallel import collectives
from evofeed.trainer.parallel import parallelize as parallel
from evofeed.trainer.parallel.axis import Axis, axial_group
from evofeed.trainer.parallel.losses import share_losses
from evofeed.trainer.parallel.parallelize import parallelize

FEW = 3  # blocks of the Evoformer in `equal`


class Ranks:
    """This process among the ranks, on its device."""

    def __init__(self, options: argparse.Namespace) -> None:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        cuda = options.device == "cuda"
        self.device = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if cuda else "gloo", device_id=self.device if cuda else None)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
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


STAGES = ("template_embedder", "extra_msa_stack", "evoformer")


class Found:
    """Loss, gradients, and what `STAGES` give and get back, of one forward and backward pass."""

    def __init__(
        self, options: argparse.Namespace, ranks: Ranks, how: str, axis: Axis | None,
        nudge: float = 0.0,
    ) -> None:  # fmt: skip
        kernels, precision = how.split(":")
        dtype = torch.float64 if precision == "fp64" else torch.float32
        chosen = PRESETS[options.preset][0]()
        blocks = min(FEW, chosen.model.evoformer.no_blocks)
        config = replace(
            chosen.model, evoformer=replace(chosen.model.evoformer, no_blocks=blocks),
            extra_msa=replace(chosen.model.extra_msa, no_blocks=1),
        )  # fmt: skip
        shapes = PRESETS[options.preset][1]
        batch = synthetic_batch(**shapes, no_recycling_iters=1, device=ranks.device)
        batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        torch.manual_seed(0)
        with ranks.device, torch.no_grad():  # AF2's start has zeros where gradients should flow
            model = AlphaFold(config).train()
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
            for module in model.modules():  # random numbers differ from type to type
                if isinstance(getattr(module, "r", None), float):
                    module.r = 0.0
        model.to(dtype)
        if kernels == "fused":
            from evofeed.kernels import to_fused

            to_fused(model)
        if axis is not None:
            parallelize(model, axis)
        self.stages: dict[str, Tensor] = {}
        for name in STAGES:
            model.get_submodule(name).register_forward_hook(self._seen(name, nudge))
        with torch.autocast(ranks.device.type, torch.bfloat16, enabled=precision == "bf16"):
            outputs = model(batch)
        loss = AlphaFoldLoss(chosen.loss)
        total, _ = (loss if axis is None else share_losses(loss, axis))(outputs, batch)
        total.backward()
        self.loss = total.detach()
        self.parameters = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        # Not of the MSA, which on one GPU the last outer product reads too.
        back = [n for n, x in self.stages.items() if x.grad is not None and n != "evoformer 0"]
        self.back = {n: self.stages[n].grad for n in back}
        self.stages = {n: x.detach() for n, x in self.stages.items()}
        if axis is not None:
            for grad in (*self.parameters.values(), *self.back.values()):
                dist.all_reduce(grad)
                grad.div_(ranks.size)

    def _seen(self, name: str, nudge: float) -> Callable[..., Any]:
        def see(module: Any, given: Any, made: Any) -> Any:
            several = isinstance(made, tuple)
            kept = []
            for number, x in enumerate(made if several else (made,)):
                if nudge and name == STAGES[-1]:
                    draws = torch.Generator(x.device).manual_seed(3)
                    x = x * (1 + nudge * torch.randn(x.shape, generator=draws, device=x.device))
                if x.requires_grad:
                    x.retain_grad()
                    self.stages[f"{name} {number}"] = x
                kept.append(x)
            return tuple(kept) if several else kept[0]

        return see

    def against(self, true: Found) -> dict[str, Any]:
        """How far everything is off, relative; `worst` is by a gradient's largest value."""
        least = 1e-3 * max(grad.abs().max().item() for grad in true.parameters.values())
        mine, theirs = self.parameters, true.parameters
        off = {n: _difference(mine[n], theirs[n], least) for n in theirs}
        worst = max(off, key=lambda n: off[n])
        return {
            "loss": _difference(self.loss, true.loss, 0.0), "gradients": _rms(mine, theirs),
            "worst": off[worst], "worst_name": worst,
            "stages": {n: _rms({n: self.stages[n]}, true.stages) for n in self.stages},
            "back": {n: _rms({n: self.back[n]}, true.back) for n in self.back},
        }  # fmt: skip


def _rms(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Root mean square of the differences of all tensors of `ours`, relative."""
    wrong = sum((x - theirs[n]).double().square().sum().item() for n, x in ours.items())
    whole = sum(theirs[n].double().square().sum().item() for n in ours)
    return float((wrong / whole) ** 0.5) if whole else wrong**0.5


EQUAL = ("plain:fp64", "fused:bf16", "plain:fp32", "fused:fp32")


def equal(options: argparse.Namespace, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """How far one GPU and the ranks of the axis are from float64 on one GPU, and from each other.

    Last one GPU in float64 whose Evoformer's outputs are nudged by as much as float32's were off.
    """
    true = Found(options, ranks, "plain:fp64", None)
    off = 0.0
    for how in (how for how in options.how if "plain" in how or options.device == "cuda"):
        one = true if how == "plain:fp64" else Found(options, ranks, how, None)
        ours = Found(options, ranks, how, ranks.axis)
        row = {"part": "equal", "how": how, "parameters": len(ours.parameters)}
        found = {"one": one.against(true), "shared": ours.against(true), "both": ours.against(one)}
        yield ranks.say(row | found)
        off = max(off, found["one"]["stages"]["evoformer 1"]) if "fp32" in how else off
        del one, ours
    nudged = Found(options, ranks, "plain:fp64", None, nudge=off).against(true)
    yield ranks.say({"part": "equal", "how": "plain:fp64 nudged", "by": off, "one": nudged})


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
    forget(ranks.device)
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
    if beside != "without exchanges":
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
    kept = collectives.all_gather, collectives.reduce_scatter, dist.all_to_all_single
    through_memory = PeerMemory._run

    def nothing(received: Tensor, sent: Tensor, *args: Any, **kwargs: Any) -> None:
        n = min(received.numel(), sent.numel())
        received.view(-1)[:n].copy_(sent.view(-1)[:n])

    collectives.all_gather = collectives.reduce_scatter = nothing
    dist.all_to_all_single = nothing
    PeerMemory._run = lambda *args, **options: None  # type: ignore[method-assign]
    look = parallel.checked
    parallel.checked = lambda axis, device: axis
    try:
        yield
    finally:
        collectives.all_gather, collectives.reduce_scatter, dist.all_to_all_single = kept
        PeerMemory._run = through_memory  # type: ignore[method-assign]
        parallel.checked = look


def times(options: argparse.Namespace, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """One GPU and shared, of every preset; then shared without exchanges."""
    cpu = options.device == "cpu"
    presets = [options.preset] if cpu else options.presets
    how = "torch:fp32:eager:0" if cpu else "fused:bf16:graph:0"
    axis = ranks.axis
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--presets", nargs="+", default=["initial_training", "finetuning"])
    parser.add_argument("--parts", nargs="+", default=["equal", "time"], choices=["equal", "time"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--how", nargs="+", default=list(EQUAL), choices=EQUAL, help="of `equal`")
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
    parts: dict[str, Callable[..., Any]] = {"equal": equal, "time": times}
    for found in (row for part in options.parts for row in parts[part](options, ranks)):
        result["found"].append(found)
        if ranks.rank == 0:  # a later case that dies loses nothing
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A whole training step of OpenFold3, Boltz or Protenix, its own code, before and after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_step.py DATA --project boltz --tokens 384 640 --out PATH

DATA is a folder of prepared entries (`evofeed entries prepare`), of which those with fewer tokens
are passed over: batches come from evofeed's loader as the step runs, with rows of alignments
repeated to `--sequences`. `--projects` is the folder that holds the projects' packages. What a
step is, `af3_step_openfold3`, `af3_step_boltz` and `af3_step_protenix` say: trunk with
`--recycles`, noised copies through the diffusion module, all losses, backward pass, clipping, the
project's optimizer and moving average; bfloat16 by autocast with the parts in float32 that the
project runs so, TF32 allowed. Weights are the project's first ones (one block of a stack copied),
zeros replaced by small numbers.

Ways: `project` recomputes every block, as the project trains; `cuequivariance` the same with its
switch for that library, `cuequivariance_bf16` with parameters and pairs of the triangle modules in
bfloat16 besides; `fused` is `to_fused(model)`, which recomputes as the project does; `recorded` is
`to_fused(model, cuda_graphs=True, keep=KEEP)`, once for each `--keep`. `--optimizer flat` takes
evofeed's `FlatOptimizer` in place of the project's.

`step_ms` and its parts: median, first and third quartile of steps behind the warm-up, wall clock,
the GPU waited for at the end of each part; `wait_ms`: for the loader. `kept_gb`: what
each part of the model keeps for the backward pass; `parts_ms`: their forward passes in one step
more, each waited for, with all recycles and denoising steps; `peak_gb`: the most of a step, weights
and optimizer included. With `--losses` steps are not waited for inside: curves, the same draws
and batches in all ways; `--seed` takes other ones.

Under torchrun each rank has a card and samples of its own: gradients are averaged by PyTorch's
`DistributedDataParallel`, those of the flat optimizer at once; times are of the slower rank.
Proof on a laptop: `TRITON_INTERPRET=1 ... --tiny`, with 16 tokens and float32. With `--device cuda`
`--tiny` has the widths of the whole model and the sizes asked for: hundreds of steps in minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import importlib.util
import itertools
import os
import random
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from af3_projects import Project
from recording import about, quartiles, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from evofeed.kernels import SwapReport, to_fused
from evofeed.kernels.runtime.backend import plain_versions
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.trainer.run.flat import FlatOptimizer

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("fused", "recorded", "project", "cuequivariance", "cuequivariance_bf16")
TIMED = ("wait", "forward", "backward", "optimizer")
PROJECTS = {"openfold3": "OpenFold3", "boltz": "Boltz", "protenix": "Protenix"}
MOST_PASSED = 200
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def prepared(first: nn.Module, project: Project, way: str, options: argparse.Namespace) -> Any:
    """A copy of the model on the device, as the way has it."""
    model = copy.deepcopy(first).to(options.device)
    project.switch(model, way)
    name, _, keep = way.partition(" ")
    if name in ("fused", "recorded"):
        report, graphs = SwapReport(), name == "recorded"
        words: Any = float(keep) if keep[:1].isdigit() else keep or None
        to_fused(model, report, cuda_graphs=graphs, keep=words)
        print(way, len(report.swapped), "swapped", flush=True)
    if name == "cuequivariance_bf16":
        for module in model.modules():
            if type(module).__name__.startswith(("TriangleMultiplication", "TriangleAttention")):
                module.bfloat16().register_forward_pre_hook(narrowed)
    return model


def narrowed(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A call's pairs in bfloat16: cuEquivariance's newest kernels take nothing else."""
    return (args[0].bfloat16(), *args[1:])


class FlatSteps:
    """The project's optimizer by evofeed's flat buffers, gradients averaged over ranks."""

    def __init__(self, model: Any, project: Project) -> None:
        fused = next(model.parameters()).is_cuda
        self.flat = FlatOptimizer(model, project.rates(model), fused=fused)
        self.number = 0

    def backward(self, loss: Tensor) -> None:
        self.flat.zero_grad()
        self.flat.backward(loss)
        if RANKS > 1:
            dist.all_reduce(self.flat.grad)
            self.flat.gather(RANKS)

    def step(self) -> None:
        self.number += 1
        self.flat.step(self.number)


def batches(
    project: Project, tokens: int, options: argparse.Namespace
) -> Generator[dict[str, Any]]:
    """Batches of one sample, of so many tokens, epoch after epoch."""
    config = LoaderConfig(
        entries=project.entries(tokens), max_resolution=float("inf"), epoch_len=1000 * RANKS
    )
    data = Dataset.open(options.data).entries
    with FeatureLoader(
        data, config, rank=RANK, world_size=RANKS, seed=options.seed, device=options.device
    ) as loader:
        passed = 0
        for loaded in itertools.chain.from_iterable(itertools.repeat(loader)):
            batch = project.batch(loaded, tokens)
            passed = passed + 1 if batch is None else 0
            if batch is not None:
                yield batch
            elif passed == MOST_PASSED:
                raise ValueError(f"{passed} samples in turn have fewer than {tokens} tokens")


class Whole(nn.Module):
    """A model's forward pass and losses: what `DistributedDataParallel` wraps."""

    def __init__(self, model: nn.Module, project: Project, options: argparse.Namespace) -> None:
        super().__init__()
        self.model, self.project, self.options = model, project, options

    def forward(self, batch: dict[str, Any]) -> Tensor:
        narrow = self.options.precision == "bfloat16"
        with torch.autocast(self.options.device.partition(":")[0], torch.bfloat16, enabled=narrow):
            return self.project.loss(self.model, batch)


class Step:
    """A model, its loss, its optimizer and its data."""

    def __init__(
        self, first: nn.Module, project: Project, way: str, data: Iterator[dict[str, Any]],
        options: argparse.Namespace,
    ) -> None:  # fmt: skip
        self.options, self.data = options, data
        self.model = prepared(first, project, way, options)
        flat = options.optimizer == "flat"
        self.optimizer: Any = (
            FlatSteps(self.model, project) if flat else project.optimizer(self.model)
        )
        self.whole: nn.Module = Whole(self.model, project, options)
        if RANKS > 1 and not flat:
            self.whole = DistributedDataParallel(self.whole, static_graph=True)
        self.kept: dict[str, float] = {}
        self.spent: dict[str, float] = {}
        self.apart = False
        for name in project.parts:
            self._watch(name)

    def _watch(self, name: str) -> None:
        """Note what a part keeps, at its last call with gradients, and its time, waited for."""
        before = []

        def now() -> tuple[int, float]:
            if self.apart and self.options.device != "cpu":
                torch.cuda.synchronize()
            return torch.cuda.memory_allocated(), time.perf_counter()

        def enters(*_: Any) -> None:
            before.append(now())

        def leaves(*_: Any) -> None:
            (memory, ended), (then, began) = now(), before.pop()
            if torch.is_grad_enabled():
                self.kept[name] = round((memory - then) / 1e9, 3)
            self.spent[name] = self.spent.get(name, 0.0) + 1e3 * (ended - began)

        module = self.model.get_submodule(name)
        module.register_forward_pre_hook(enters)
        module.register_forward_hook(leaves)

    def run(self, number: int, waits: bool = True) -> dict[str, Any]:
        """Milliseconds of one step's parts, and its loss."""
        times = [time.perf_counter()]

        def mark() -> None:
            if waits and self.options.device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter())

        batch = next(self.data)
        mark()
        drawn = 10_000 * self.options.seed + RANKS * number + RANK
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(drawn)
        loss = self.whole(batch)
        mark()
        self.optimizer.backward(loss)
        mark()
        self.optimizer.step()
        mark()
        spent = [1e3 * (end - start) for start, end in itertools.pairwise(times)]
        return {**dict(zip(TIMED, spent, strict=True)), "step": sum(spent), "loss": loss.detach()}


def row(
    first: nn.Module, project: Project, way: str, tokens: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One way at one size."""
    with contextlib.closing(batches(project, tokens, options)) as data:
        step = Step(first, project, way, data, options)
        if options.losses:
            began = time.perf_counter()
            losses: list[float] = []
            while len(losses) < options.losses and time.perf_counter() - began < options.seconds:
                losses.append(round(float(step.run(len(losses), waits=False)["loss"]), 5))
            return {"losses": losses, "curve_seconds": round(time.perf_counter() - began, 1)}
        for number in range(options.warmup):
            print({name: round(float(ms), 1) for name, ms in step.run(number).items()}, flush=True)
        if options.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        made = [step.run(options.warmup + number) for number in range(options.steps)]
        step.apart, step.spent = True, {}
        step.run(options.warmup + options.steps)
    found: dict[str, Any] = {
        f"{name}_ms": quartiles(slowest([one[name] for one in made])) for name in ("step", *TIMED)
    }
    found["samples_per_second"] = round(1e3 * RANKS / found["step_ms"][0], 3)
    waited = sum(one["wait"] for one in made)
    found["share_of_waiting"] = round(waited / sum(one["step"] for one in made), 4)
    if options.device != "cpu":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        found["kept_gb"] = step.kept
    found["parts_ms"] = {name: round(ms, 1) for name, ms in step.spent.items()}
    return found | {"losses": [round(float(one["loss"]), 4) for one in made]}


def slowest(times: list[float]) -> list[float]:
    """Of all ranks."""
    if RANKS == 1:
        return times
    every: list[Any] = [None] * RANKS
    dist.all_gather_object(every, times)
    return [max(each) for each in zip(*every, strict=True)]


def parser(doc: str | None, ways: tuple[str, ...]) -> argparse.ArgumentParser:
    """What a call may say of data, project, sizes and ways."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("data", help="prepared entries")
    made.add_argument("--project", default="openfold3", choices=PROJECTS)
    made.add_argument("--projects", type=Path, default=ROOT / ".projects")
    made.add_argument("--device", help="cuda; with --tiny the CPU")
    made.add_argument("--tokens", type=int, nargs="+", default=[384])
    made.add_argument("--ways", nargs="+", default=list(ways), choices=ways)
    made.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float32"))
    made.add_argument("--sequences", type=int, default=1024)
    made.add_argument("--recycles", type=int, default=1, help="passes of the trunk before its last")
    made.add_argument("--seed", type=int, default=0, help="of samples, crops and noise")
    made.add_argument(
        "--seconds", type=float, default=float("inf"), help="no row, no step of a curve after"
    )
    made.add_argument("--tiny", action="store_true", help="2 blocks, few noised copies")
    made.add_argument("--out", type=Path)
    made.set_defaults(predicts=False)
    return made


def settled(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The call's options: small ones if they are to be, ways that can run here."""
    options = made.parse_args()
    options.device = options.device or ("cpu" if options.tiny else "cuda")
    if options.device == "cpu":
        options.tokens, options.sequences = [16], 4
        options.precision = "float32"  # autocast of a CPU is not what the projects recompute with
    if importlib.util.find_spec("cuequivariance_torch") is None:
        options.ways = [way for way in options.ways if not way.startswith("cuequivariance")]
    return options


def parsed() -> argparse.Namespace:
    made = parser(__doc__, WAYS)
    made.add_argument("--keep", nargs="+", default=["blocks"], help="blocks, all, GB")
    made.add_argument("--optimizer", default="project", choices=("project", "flat"))
    made.add_argument("--warmup", type=int, default=3)
    made.add_argument("--steps", type=int, default=8)
    made.add_argument("--losses", type=int, default=0, help="steps of a curve, not timed")
    options = settled(made)
    if options.device == "cpu":
        options.warmup, options.steps = 1, 1
    if RANKS > 1:
        dist.init_process_group()
    if RANKS > 1 and options.device == "cuda":
        options.device = f"cuda:{RANK}"
        torch.cuda.set_device(RANK)
    options.ways = [
        each for way in options.ways
        for each in ([f"{way} {keep}" for keep in options.keep] if way == "recorded" else [way])
    ]  # fmt: skip
    return options


def measure(
    options: argparse.Namespace, row: Callable[..., dict[str, Any]], stated: tuple[str, ...]
) -> None:
    """A row for each size and way, written as they are made.

    Args:
        row: called with the first model, the project, the way, the tokens and the options.
        stated: options that the result states besides.
    """
    began = time.perf_counter()
    if options.precision == "bfloat16":
        torch.set_float32_matmul_precision("high")
    module = importlib.import_module(f"af3_step_{options.project}")
    project: Project = getattr(module, PROJECTS[options.project])(options)
    result: dict[str, Any] = about(
        "torch", "triton", options.project, "cuequivariance-ops-torch-cu13",
        device=options.device.partition(":")[0],
    ) | {
        name: getattr(options, name)
        for name in ("project", "recycles", "sequences", "precision", "seed", *stated)
    } | {"ranks": RANKS, "rows": [], "not_run": []}  # fmt: skip
    for seeded in (np.random.seed, random.seed):
        seeded(0)  # OpenFold3 draws weights by NumPy too
    first = project.first().train(not options.predicts)
    print(f"model made in {time.perf_counter() - began:.0f} s", flush=True)
    for tokens, way in itertools.product(options.tokens, options.ways):
        if time.perf_counter() - began > options.seconds:
            result["not_run"].append({"tokens": tokens, "how": way})
            continue
        started = time.perf_counter()
        found = {"tokens": tokens, "how": way}
        try:
            with plain_versions() if options.device == "cpu" else contextlib.nullcontext():
                found |= row(first, project, way, tokens, options)
        except torch.OutOfMemoryError:
            found["failed"] = "out of memory"
        except Exception as error:  # the rows after it are to be measured
            traceback.print_exc()
            found["failed"] = f"{type(error).__name__}: {error}"[:300]
        found["seconds"] = round(time.perf_counter() - started, 1)
        result["rows"].append(found)
        print(found, flush=True)
        if options.out and RANK == 0:
            save(options.out, result)
        gc.collect()  # a step's hooks refer to it
        if options.device != "cpu":
            torch.cuda.empty_cache()


def main() -> None:
    measure(parsed(), row, ("optimizer",))


if __name__ == "__main__":
    main()

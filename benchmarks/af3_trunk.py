"""Training of the trunks of Boltz-2, OpenFold3 and Protenix before and after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_trunk.py --out PATH

`pip install --no-deps boltz openfold3 protenix` and what their own code imports. A trunk is a MSA
module of 4 blocks and a Pairformer of 48 (Boltz-2: 64) at the projects' widths, with random
weights (`af3_trunk_models`). Bfloat16 by autocast, float32 weights, Adam.

At a crop of 384: `eager` with activation checkpoints of each block, as the projects train
(what eager blocks keep does not fit a card), `fused checkpointed` (one line more), `fused`
(without checkpoints), `graph` (`cuda_graphs=True`). Dropout 0, so that all ways compute the same;
`--dropout` takes the projects' own. `float32` is eager without autocast and TF32, and `fused
float32` the same swapped, both checkpointed: what bfloat16 is measured by. `step_ms`: median,
first and third quartile of whole steps by the wall clock, optimizer included; `peak_mb` of a
step, weights included. `losses`: of the first `--steps` steps from one start. `gradient`:
relative difference of all first gradients from eager's. `control` is eager once more, its pairs
changed by up to one rounding (bfloat16), each number by chance and in every step alike: what such
a trunk makes of noise; `fused control` is the same of fused, `control 2` another draw.
No way begins a call after `--limit` seconds, and none begins after `--seconds`.

Proof on a laptop: `--device cpu --size 16 --sequences 4 --blocks 1 --steps 2`.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from af3_trunk_models import BLOCKS, build, make_inputs
from recording import about, quartiles, save
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused

TRAIN = ("eager", "fused", "control", "fused control", "fused checkpointed", "graph",
         "fused float32", "fused float32 control", "float32")  # fmt: skip
ROUNDING = 2.0**-8  # of bfloat16: up to half of it, up or down

built_once = functools.lru_cache(maxsize=2)(build)  # some projects' first weights take seconds


def bare(how: str) -> str:
    """Without the number of its draw."""
    first, _, last = how.rpartition(" ")
    return first if last.isdigit() else how


class Training:
    """One trunk with a readout, its inputs and its optimizer."""

    def __init__(self, project: str, how: str, options: argparse.Namespace) -> None:
        checkpointed = bare(how) not in ("fused", "fused control", "graph")
        self.device, self.narrow = options.device, "float32" not in bare(how)
        first = built_once(
            project, blocks=options.blocks, dropout=options.dropout, checkpointed=checkpointed
        )
        self.trunk = copy.deepcopy(first).to(self.device).train()
        if how.startswith(("fused", "graph")):
            report = SwapReport()
            to_fused(self.trunk, report, cuda_graphs=how == "graph")
            if report.kept:
                print(project, how, report, flush=True)
        self.inputs = make_inputs(project, options.size, options.sequences, options.device)
        torch.manual_seed(3)
        self.readout = nn.ModuleList([nn.Linear(384, 8), nn.Linear(128, 8)]).to(self.device)
        if "control" in how:
            torch.manual_seed(100 + int(how.removeprefix(bare(how)) or 1))
            noise = (torch.rand(self.inputs.z.shape) - 0.5).to(self.device)
            self.inputs.z = self.inputs.z * (1 + ROUNDING * noise)
        self.parameters = [*self.trunk.parameters(), *self.readout.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-4, fused=self.device == "cuda")

    def gradients(self) -> tuple[float, list[Tensor]]:
        """The loss, and gradients of all parameters."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.narrow):
            s, z = self.trunk(self.inputs)
            of_single, of_pairs = self.readout[0](s), self.readout[1](z)
        loss = of_single.float().square().mean() + (of_pairs.float() - 1.0).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return float(loss.detach()), [p.grad for p in self.parameters if p.grad is not None]

    def step(self) -> float:
        loss, _ = self.gradients()
        self.optimizer.step()
        return loss


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Relative, of all numbers together."""

    def squares(x: Tensor) -> float:
        return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2

    apart = sum(squares(a - b) for a, b in zip(ours, theirs, strict=True))
    return float(f"{(apart / sum(squares(b) for b in theirs)) ** 0.5:.3g}")


def row(
    project: str, how: str, exact: list[Tensor] | None, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Tensor] | None]:
    """One way's gradients, steps and memory; its first gradients if they are what others have."""
    way, on_gpu = Training(project, how, options), options.device == "cuda"
    first = [g.cpu() for g in way.gradients()[1]]
    found: dict[str, Any] = {"gradients": len(first)}
    if exact is not None:
        found["gradient"] = difference(first, exact)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    taken: list[float] = []
    losses = []
    while len(taken) < options.steps and sum(taken) < 1e3 * options.limit:
        began = time.perf_counter()
        losses.append(round(way.step(), 5))
        if on_gpu:
            torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - began))
    found |= {"step_ms": quartiles(taken), "calls": len(taken), "losses": losses}
    if on_gpu:
        found["peak_mb"] = round(torch.cuda.max_memory_allocated() / 1e6)
    return found, first if how == "eager" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--projects", nargs="+", default=list(BLOCKS), choices=BLOCKS)
    parser.add_argument("--ways", nargs="+", default=TRAIN, help="in this order")
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--sequences", type=int, default=1024)
    parser.add_argument("--blocks", type=int, help="of the Pairformer; the projects' own if absent")
    parser.add_argument("--dropout", action="store_true", help="the projects' own, not 0")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds of a way")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    packages = ("torch", "triton", "cuequivariance-ops-torch-cu13", *BLOCKS)
    result: dict[str, Any] = {
        **about(*(p.rstrip("2") for p in packages), device=options.device),
        "steps": options.steps, "residues": options.size, "sequences": options.sequences,
        "blocks": options.blocks or BLOCKS, "dropout": options.dropout, "rows": [], "not_run": [],
    }  # fmt: skip
    exact: dict[str, list[Tensor]] = {}
    for project, how in itertools.product(options.projects, options.ways):
        found: dict[str, Any] = {"project": project, "part": "train", "how": how}
        if time.perf_counter() - began > options.seconds:
            result["not_run"].append(found)
            continue
        try:
            measured, made = row(project, how, exact.get(project), options)
            found |= measured
            if made is not None:
                exact[project] = made
        except torch.OutOfMemoryError:
            found["failed"] = "out of memory"
        result["rows"].append(found)
        print(json.dumps(found), flush=True)
        if options.out:
            save(options.out, result)
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

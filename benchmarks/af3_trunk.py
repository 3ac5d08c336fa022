"""A trunk of 48 Pairformer blocks of Boltz, OpenFold3 and Protenix before and after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_trunk.py --out benchmarks/results/af3_trunk_h200.json

What it is: the blocks of `tests/kernels/af3` (names, shapes and mathematics of the projects',
checked against what their own classes gave), random weights, random inputs, a crop of 384,
no dropout, no data, no MSA module and no diffusion. What it is not: the projects' own code.
Bfloat16 by autocast, float32 weights, Adam. Ways: `eager checkpointed` (each block, as the
projects train: all that eager blocks keep does not fit a card), `fused checkpointed`, `fused`,
`graph` (`cuda_graphs=True`).

`step_ms`: median, first and third quartile of whole steps by the wall clock, optimizer
included; `peak_mb` of a step. `losses`: of the first `--steps` steps, all ways from one start.
`gradient`: relative difference of all first gradients from eager's; `nudged` is the same for
eager itself with its pairs changed by one rounding (bfloat16), what such a trunk makes of noise.
Proof on a laptop: `--device cpu --size 8 --blocks 2 --steps 2`.
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
from af3_pair_block import environment
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.files import write_atomic
from evofeed.kernels import to_fused

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.kernels.af3 import boltz, openfold3, protenix

C_S, C_Z = 384, 128
WAYS = ("fused", "eager checkpointed", "fused checkpointed", "graph")
PROJECTS: dict[str, Callable[[], nn.Module]] = {
    "openfold3": lambda: openfold3.PairFormerBlock(
        C_S, C_Z, 24, 16, 128, 32, 4, "swiglu", 4, 0.0, False, 1e9
    ),
    "boltz2": lambda: boltz.PairformerLayer(C_S, C_Z, dropout=0.0),
    "protenix": lambda: protenix.PairformerBlock(dropout=0.0),
}


class Trunk(nn.Module):
    """Blocks in a row, and two layers that read what they made."""

    def __init__(self, project: str, blocks: int, checkpointed: bool) -> None:
        super().__init__()
        self.takes_single_mask = project != "protenix"
        self.checkpointed = checkpointed
        self.blocks = nn.ModuleList(PROJECTS[project]() for _ in range(blocks))
        self.of_single, self.of_pairs = nn.Linear(C_S, 8), nn.Linear(C_Z, 8)

    def forward(self, s: Tensor, z: Tensor, single_mask: Tensor, pair_mask: Tensor) -> Tensor:
        masks = (single_mask, pair_mask) if self.takes_single_mask else (pair_mask,)
        for block in self.blocks:
            if self.checkpointed:
                s, z = checkpoint(block, s, z, *masks, use_reentrant=False)
            else:
                s, z = block(s, z, *masks)
        single: Tensor = self.of_single(s).float().square().mean()
        return single + (self.of_pairs(z).float() - 1.0).square().mean()


def start(trunk: nn.Module) -> None:
    """The same random weights for every way; norms start at one."""
    torch.manual_seed(1)
    for parameter in trunk.parameters():
        with torch.no_grad():
            drawn = torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5
            matrix = parameter.dim() > 1
            parameter.copy_(drawn if matrix else (parameter == 1.0).float() + 0.0 * drawn)


class Way:
    """One trunk, its inputs and its optimizer."""

    def __init__(self, project: str, how: str, options: argparse.Namespace) -> None:
        self.device, n = options.device, options.size
        trunk = Trunk(project, options.blocks, how.endswith("checkpointed"))
        start(trunk)
        self.trunk = trunk.to(self.device)
        if not how.startswith("eager"):
            to_fused(self.trunk, cuda_graphs=how == "graph")
        torch.manual_seed(2)
        mask = torch.ones(1, n)
        mask[:, n - n // 10 :] = 0.0
        inputs = (
            torch.randn(1, n, C_S),
            torch.randn(1, n, n, C_Z),
            mask,
            mask[:, None] * mask[0, :, None],
        )
        self.inputs = [t.to(self.device) for t in inputs]
        self.noise = torch.randn(1, n, n, 1).to(self.device)
        self.optimizer = torch.optim.Adam(
            self.trunk.parameters(), lr=1e-4, fused=self.device == "cuda"
        )

    def gradients(self, nudge: float = 0.0) -> tuple[float, list[Tensor]]:
        """The loss, and gradients of all parameters."""
        s, z, *masks = self.inputs
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.trunk(s, z if not nudge else z + nudge * z * self.noise, *masks)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return float(loss.detach()), [
            p.grad for p in self.trunk.parameters() if p.grad is not None
        ]  # fmt: skip

    def step(self) -> float:
        loss, _ = self.gradients()
        self.optimizer.step()
        return loss


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Relative, of all numbers together."""
    pairs = list(zip(ours, theirs, strict=True))
    apart = sum(float((a.cpu() - b.cpu()).square().sum()) for a, b in pairs)
    return round((apart / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5, 5)


def row(
    project: str, how: str, exact: list[Tensor] | None, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Tensor] | None]:
    """One way of one project, and its first gradients."""
    found: dict[str, Any] = {"project": project, "how": how}
    grads = None
    try:
        way = Way(project, how, options)
        _, first = way.gradients()
        grads = [g.cpu() for g in first]
        if exact is not None:
            found["gradient"] = difference(grads, exact)
        elif how.startswith("eager"):
            found["nudged"] = difference(way.gradients(nudge=2.0**-8)[1], grads)
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times, losses = [], []
        for _ in range(options.steps):
            began = time.perf_counter()
            losses.append(round(way.step(), 5))  # waits for the GPU
            times.append(1e3 * (time.perf_counter() - began))
        q1, median, q3 = statistics.quantiles(times, n=4)
        found |= {"step_ms": [round(t, 1) for t in (median, q1, q3)], "losses": losses}
        if options.device == "cuda":
            found["peak_mb"] = round(torch.cuda.max_memory_allocated() / 1e6)
    except torch.OutOfMemoryError:
        found["failed"] = "out of memory"
    return found, grads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--projects", nargs="+", default=list(PROJECTS), choices=PROJECTS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.repeats = options.steps
    began = time.perf_counter()
    about = environment(options) | {"repeats": f"{options.steps} steps: median and quartiles"}
    about["command"] = about["command"].replace("af3_pair_block", "af3_trunk")
    result: dict[str, Any] = {**about, "blocks": options.blocks, "residues": options.size,
                              "rows": [], "not_run": []}  # fmt: skip
    for project in options.projects:
        exact = None
        for how in sorted(options.ways, key=lambda how: not how.startswith("eager")):
            if time.perf_counter() - began > options.seconds:
                result["not_run"].append({"project": project, "how": how})
                continue
            found, grads = row(project, how, exact, options)
            exact = exact or grads
            result["rows"].append(found)
            print(json.dumps(found), flush=True)
            if options.out:
                write_atomic(options.out, json.dumps(result, indent=1) + "\n")
            if options.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

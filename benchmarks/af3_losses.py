"""Who lies nearer to float32: the trunks of `af3_trunk.py` in bfloat16 before or after `to_fused`.

    PYTHONPATH=src:benchmarks python benchmarks/af3_losses.py --out PATH

All ways train one start (weights, inputs, Adam) for `--steps` steps without activation checkpoints.

`exact` is the project's own trunk in float32 without TF32. At each of its steps `eager` and
`fused` compute in bfloat16 at the same weights: `at_same_weights` has the relative difference of
the loss, of all gradients, and `scale`, their projection on the exact ones less one (a scale, a
mask or an eps that is wrong shows there, rounding does not). `gradients_of` has the same of each
kind of parameter at the first step, with outputs `s` and `z`.

The other ways train by themselves: `eager`, `fused` in bfloat16, `eager N` and `fused N` with
pairs changed by one rounding (bfloat16, seed N), `fused32` and `exact 1` in float32,
`only KIND` with one kind of module swapped. `end` is the loss of the trained weights in the
project's own float32 forward.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.metadata
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from af3_pair_block import environment
from af3_trunk_models import BLOCKS, Inputs, Trunk, build, make_inputs
from torch import Tensor, nn

from evofeed.files import write_atomic
from evofeed.kernels import SwapReport, to_fused, to_torch

ROUNDING = 2.0**-8  # of bfloat16
KINDS = {
    "multiplication": ("tri_mul_out", "tri_mul_in"),
    "attention": ("tri_att_start", "tri_att_end"),
    "transition": ("pair_transition", "transition_z", "msa_transition", "transition_m",
                   "single_transition", "transition_s"),
    "outer": ("outer_product_mean", "outer_product_mean_msa"),
    "averaging": ("msa_att_row", "pair_weighted_averaging", "msa_pair_weighted_averaging"),
    "tokens": ("attn_pair_bias", "attention_pair_bias", "attention"),
}  # fmt: skip
WAYS = ("eager", "fused", "exact", "eager 1", "fused 1", "fused32", *(f"only {k}" for k in KINDS),
        "eager 2", "fused 2", "exact 1", "eager 3", "fused 3")  # fmt: skip


@functools.cache
def original(project: str, blocks: int) -> Trunk:
    """Made once: some projects' own first weights take seconds."""
    return build(project, blocks=blocks, dropout=False)


def swapped(trunk: Trunk, how: str) -> int:
    """Swaps what the way asks for; how many modules."""
    report = SwapReport()
    if how.startswith("fused"):
        to_fused(trunk, report)
    elif how.startswith("only"):
        names = KINDS[how.split()[1]]
        for name, module in list(trunk.named_modules()):
            if name.rsplit(".", 1)[-1] in names:
                to_fused(module, report)
    return sum("Fused" in type(m).__name__ or hasattr(type(m), "mixin") for m in trunk.modules())


class Way:
    """A trunk with a readout, its inputs, in its precision."""

    def __init__(self, project: str, how: str, options: argparse.Namespace) -> None:
        self.device, word, number = options.device, how.split()[0], how.split()[-1]
        self.narrow = word not in ("exact", "fused32")
        self.trunk = copy.deepcopy(original(project, options.blocks)).to(self.device).train()
        self.swapped = swapped(self.trunk, how)
        self.inputs = make_inputs(project, options.size, options.sequences, self.device)
        torch.manual_seed(3)
        self.readout = nn.ModuleList([nn.Linear(384, 8), nn.Linear(128, 8)]).to(self.device)
        if number.isdigit():
            torch.manual_seed(100 + int(number))
            noise = torch.randn(1, options.size, options.size, 1).to(self.device)
            x = self.inputs
            self.inputs = Inputs(x.single_inputs, x.s, x.z * (1 + ROUNDING * noise), x.msa,
                                 x.deletions, x.mask)  # fmt: skip
        both = nn.ModuleDict({"trunk": self.trunk, "readout": self.readout})
        self.named = dict(both.named_parameters())

    def shares(self, other: Way) -> None:
        """Its parameters are another's from now on."""
        for name, parameter in self.named.items():
            parameter.data = other.named[name].data

    def loss(self) -> tuple[Tensor, list[Tensor]]:
        narrow = torch.autocast(self.device, torch.bfloat16) if self.narrow else nullcontext()
        with narrow:
            s, z = self.trunk(self.inputs)
            of_single, of_pairs = self.readout[0](s), self.readout[1](z)
        loss = of_single.float().square().mean() + (of_pairs.float() - 1.0).square().mean()
        return loss, [s.detach(), z.detach()]

    def gradients(self) -> tuple[float, list[Tensor], dict[str, Tensor]]:
        """The loss, outputs, and gradients by name."""
        loss, outputs = self.loss()
        for parameter in self.named.values():
            parameter.grad = None
        loss.backward()
        grads = {n: p.grad for n, p in self.named.items() if p.grad is not None}
        return float(loss.detach()), outputs, grads


def distance(ours: list[Tensor], exact: list[Tensor]) -> dict[str, float]:
    """Relative difference of all numbers together, and their projection on the exact less one."""
    sums = torch.zeros(3, dtype=torch.float64)
    for a, b in zip(ours, exact, strict=True):
        a, b = a.double(), b.double()
        sums += torch.stack([(a - b).square().sum(), (a * b).sum(), b.square().sum()]).cpu()
    apart, along, own = sums.tolist()
    if own == 0.0:
        return {"apart": 0.0, "scale": 0.0}
    return {"apart": float(f"{(apart / own) ** 0.5:.3g}"), "scale": float(f"{along / own - 1:.3g}")}


def kind_of(name: str) -> str:
    """Which operator a parameter is of, with what it is there."""
    parts = name.split(".")
    owner = next((k for k, names in KINDS.items() if set(parts) & set(names)), "other")
    where = "msa" if "msa_module" in parts else parts[1] if parts[0] == "trunk" else "readout"
    return f"{where} {owner}"


def by_kind(grads: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, Any]:
    kinds: dict[str, list[str]] = {}
    for name in exact:
        kinds.setdefault(kind_of(name), []).append(name)
    return {
        kind: distance([grads[n] for n in names], [exact[n] for n in names])
        for kind, names in sorted(kinds.items())
    }


def trained(project: str, how: str, options: argparse.Namespace) -> dict[str, Any]:
    """The losses of a way that trains; with `exact`, the others at its weights."""
    way = Way(project, how, options)
    others = {}
    if how == "exact":
        others = {name: Way(project, name, options) for name in ("eager", "fused")}
        for other in others.values():
            other.shares(way)
    optimizer = torch.optim.Adam(way.named.values(), lr=1e-4, fused=options.device == "cuda")
    found: dict[str, Any] = {"swapped": way.swapped, "losses": []}
    same: list[dict[str, Any]] = []
    for step in range(options.steps):
        loss, outputs, grads = way.gradients()
        found["losses"].append(round(loss, 6))
        row: dict[str, Any] = {}
        for name, other in others.items():
            its_loss, its_outputs, its_grads = other.gradients()
            row[name] = {"loss": float(f"{its_loss / loss - 1:.3g}"),
                         **distance(list(its_grads.values()), list(grads.values()))}  # fmt: skip
            if step == 0:
                of = by_kind(its_grads, grads)
                of |= {k: distance([a], [b])
                       for k, a, b in zip("sz", its_outputs, outputs, strict=True)}  # fmt: skip
                found.setdefault("gradients_of", {})[name] = of
            del its_grads, its_outputs
            for parameter in other.named.values():
                parameter.grad = None
        if row:
            same.append(row)
        optimizer.step()
    if same:
        found["at_same_weights"] = same
    del optimizer, others
    to_torch(way.trunk)
    way.narrow = False
    with torch.no_grad():
        found["end"] = round(float(way.loss()[0]), 6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--projects", nargs="+", default=list(BLOCKS), choices=BLOCKS)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.repeats = options.steps
    began = time.perf_counter()
    about = environment(options)
    about["command"] = about["command"].replace("af3_pair_block", "af3_losses")
    result: dict[str, Any] = {
        **about, "repeats": f"{options.steps} steps of each way once",
        "projects": {p: importlib.metadata.version(p.rstrip("2")) for p in options.projects},
        "residues": options.size, "sequences": options.sequences, "blocks": options.blocks,
        "dropout": False, "rows": [], "not_run": [],
    }  # fmt: skip
    for project in options.projects:
        for how in options.ways:
            found: dict[str, Any] = {"project": project, "how": how}
            if time.perf_counter() - began > options.seconds:
                result["not_run"].append(found)
                continue
            found |= trained(project, how, options)
            result["rows"].append(found)
            print(round(time.perf_counter() - began, 1), json.dumps(found), flush=True)
            if options.out:
                write_atomic(options.out, json.dumps(result, indent=1) + "\n")
            if options.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""Who lies nearer to float32: the trunks of `af3_trunk.py` in bfloat16 before or after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_losses.py --out PATH

A trunk is trained in float32 (`--curve`: `float32`, the project's own operators, or `fused
float32`, which takes a third of the time; no TF32) for `--steps` steps of Adam. Before the steps
`--at`, counted from 1, all `--ways` compute the loss and all gradients at its weights: `float32`,
and in bfloat16 `eager`, `control` (eager, pairs changed by one rounding), `fused`, and `only KIND`,
one kind of module swapped. So nothing that happened in earlier steps is between them.

Relative to `float32` of the same weights: `loss`; `apart`, the difference of all gradients
together; `scale`, their projection on float32's less one (rounding leaves it zero; a wrong scale,
mask or eps does not); and the same of the outputs `s` and `z` and of each kind of parameter
(`kinds`).

Proof on a laptop: `--device cpu --size 16 --sequences 4 --blocks 1 --steps 2 --at 1 2`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import torch
from af3_pair_block import environment
from af3_trunk import Training
from af3_trunk_models import BLOCKS, Trunk, build
from torch import Tensor, nn

from evofeed.files import write_atomic
from evofeed.kernels import SwapReport, to_fused

KINDS = {
    "multiplication": ("tri_mul_out", "tri_mul_in"),
    "attention": ("tri_att_start", "tri_att_end"),
    "transition": ("pair_transition", "transition_z", "msa_transition", "transition_m",
                   "single_transition", "transition_s"),
    "outer": ("outer_product_mean", "outer_product_mean_msa"),
    "averaging": ("msa_att_row", "pair_weighted_averaging", "msa_pair_weighted_averaging"),
    "tokens": ("attn_pair_bias", "attention_pair_bias", "attention"),
}  # fmt: skip
WAYS = ("float32", "eager", "fused", "control", *(f"only {kind}" for kind in KINDS))


def swap_only(trunk: nn.Module, kind: str) -> None:
    """Swaps one kind of module, which must be there."""
    report = SwapReport()
    for name, module in list(trunk.named_modules()):
        if name.rsplit(".", 1)[-1] in KINDS[kind]:
            to_fused(module, report)
    if not report.swapped:
        raise ValueError(f"no module of kind {kind} was swapped: {report}")


class Way(Training):
    """One that computes at another's weights, with checkpoints of each block."""

    def __init__(
        self, project: str, how: str, options: argparse.Namespace, original: Trunk
    ) -> None:
        super().__init__(project, "eager" if how.startswith("only") else how, options, original)
        if how.startswith("only"):
            swap_only(self.trunk, how.split()[1])
        self.outputs: list[Tensor] = []
        self.trunk.register_forward_hook(self._keep)
        both = nn.ModuleDict({"trunk": self.trunk, "readout": self.readout})
        self.named = dict(both.named_parameters())

    def _keep(self, _module: nn.Module, _inputs: Any, outputs: tuple[Tensor, Tensor]) -> None:
        self.outputs = [t.detach() for t in outputs]

    def shares(self, other: Way) -> None:
        """Its parameters are another's from now on."""
        for name, parameter in self.named.items():
            parameter.data = other.named[name].data

    def found(self) -> tuple[float, dict[str, Tensor]]:
        """The loss, and gradients by name."""
        loss, _ = self.gradients()
        return loss, {n: p.grad for n, p in self.named.items() if p.grad is not None}

    def forget(self) -> None:
        self.outputs = []
        self.optimizer.zero_grad(set_to_none=True)


def distance(ours: list[Tensor], exact: list[Tensor]) -> dict[str, float]:
    """Relative difference of all numbers together, and their projection on the exact less one."""
    sums = torch.zeros(3, dtype=torch.float64, device=exact[0].device)
    for a, b in zip(ours, exact, strict=True):
        a, b = a.double(), b.double()
        sums += torch.stack([(a - b).square().sum(), (a * b).sum(), b.square().sum()])
    apart, along, own = sums.tolist()
    own = own or 1.0
    return {"apart": float(f"{(apart / own) ** 0.5:.3g}"), "scale": float(f"{along / own - 1:.3g}")}


def kind_of(name: str) -> str:
    """Of which stack and which kind of module a parameter is."""
    parts = name.split(".")
    kind = next((k for k, names in KINDS.items() if set(parts) & set(names)), "other")
    return f"{parts[1] if parts[0] == 'trunk' else parts[0]} {kind}"


def compared(way: Way, exact: dict[str, Any]) -> dict[str, Any]:
    """What `way` computes, beside float32's at the same weights."""
    loss, grads = way.found()
    theirs: dict[str, Tensor] = exact["grads"]
    kinds: dict[str, list[str]] = {}
    for name in theirs:
        kinds.setdefault(kind_of(name), []).append(name)

    def of(names: list[str]) -> dict[str, float]:
        return distance([grads[n] for n in names], [theirs[n] for n in names])

    found: dict[str, Any] = {"loss": float(f"{loss / exact['loss'] - 1:.3g}"), **of(list(theirs))}
    for name, ours, own in zip("sz", way.outputs, exact["outputs"], strict=True):
        found[name] = distance([ours], [own])
    return found | {"kinds": {kind: of(names) for kind, names in sorted(kinds.items())}}


def at_one_point(curve: Way, ways: dict[str, Way], options: argparse.Namespace) -> dict[str, Any]:
    """All ways at the curve's weights."""
    found: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    for how, way in ways.items():
        if not exact:  # float32 comes first
            loss, grads = way.found()
            exact = {"loss": loss, "grads": dict(grads), "outputs": way.outputs}
            found[how] = {"value": round(loss, 6)}
        else:
            found[how] = compared(way, exact)
        way.forget()
    found[options.curve] = compared(curve, exact)
    curve.forget()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--projects", nargs="+", default=list(BLOCKS), choices=BLOCKS)
    parser.add_argument("--curve", default="fused float32", choices=["float32", "fused float32"])
    parser.add_argument("--ways", nargs="+", default=WAYS, help="float32 first")
    parser.add_argument("--at", type=int, nargs="+", default=[1, 10, 20])
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--sequences", type=int, default=1024)
    parser.add_argument("--blocks", type=int, help="of the Pairformer; the projects' own if absent")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.repeats, options.dropout = 1, False
    began = time.perf_counter()
    about = environment(options)
    about["command"] = about["command"].replace("af3_pair_block", "af3_losses")
    result: dict[str, Any] = {
        **about, "repeats": "each once",
        "projects": {p: importlib.metadata.version(p.rstrip("2")) for p in options.projects},
        "residues": options.size, "sequences": options.sequences,
        "blocks": options.blocks or BLOCKS, "dropout": False, "curve": options.curve, "rows": [],
    }  # fmt: skip
    for project in options.projects:
        original = build(project, blocks=options.blocks, checkpointed=True).to(options.device)
        curve = Way(project, options.curve, options, original)
        ways = {how: Way(project, how, options, original) for how in options.ways}
        for way in ways.values():
            way.shares(curve)
        losses: list[float] = []
        row: dict[str, Any] = {"project": project, "losses": losses, "at": {}}
        result["rows"].append(row)
        for step in range(1, options.steps + 1):
            if step in options.at:
                row["at"][str(step)] = at_one_point(curve, ways, options)
            losses.append(round(curve.step(), 6))
            print(round(time.perf_counter() - began, 1), project, losses[-1],
                  json.dumps(row["at"].get(str(step), {})), flush=True)  # fmt: skip
            if options.out:
                write_atomic(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What each piece of evofeed adds to a training step, one rung after the other, in one run.

    PYTHONPATH=src python benchmarks/ladder.py --out ladder.json --limit 280
    PYTHONPATH=src python benchmarks/ladder.py --preset tiny --device cpu --out proof.json

`eager`: the model in plain PyTorch, activations recomputed, clipping, Adam and the moving average
by PyTorch's multi-tensor calls over the 5,044 tensors; then with activations kept. `recorded`: the
same in a CUDA graph, and one piece after the other: fused layer norms, attention, triangle
multiplication, then transitions, outer products and whole blocks, the flat optimizer. Activations
and graphs come first because eager steps wait for the CPU that launches their kernels, whatever
the kernels take, and because a recording cannot recompute: torch.utils.checkpoint reads the state
of the random numbers, which is not there while a graph is recorded. `beside`: everything without
one of its pieces, and without graphs. One synthetic batch of the preset's shapes, bf16, no
recycles; times are those of `train_step.py`. No new row begins after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import PRESETS, Case, Step, batch_of, command, forget, machine

from evofeed.kernels.fused_module import fuse
from evofeed.kernels.swap.swap import RULES
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run.flat import FlatOptimizer

OPERATORS = {
    "layer norm": {"FusedLayerNorm"},
    "attention": {"FusedTriangleAttention", "FusedMSAAttention", "FusedGlobalColumnAttention"},
    "triangle multiplication": {"FusedTriangleMultiplication"},
    "transition, outer product, blocks": {
        "FusedTransition", "FusedOuterProductMean", "FusedEvoformerBlock", "FusedPairStack",
        "FusedTemplateBlock",
    },
}  # fmt: skip
"""What is swapped for a piece, by the names of the fused forwards."""
OPTIMIZER, KEPT, GRAPHS = "flat optimizer", "activations kept", "CUDA graphs"
PIECES = (KEPT, GRAPHS, *OPERATORS, OPTIMIZER)
BESIDE = (
    *((f"all but {piece}", frozenset(PIECES) - {piece}) for piece in (*OPERATORS, OPTIMIZER)),
    (f"all but {GRAPHS}", frozenset(PIECES) - {GRAPHS}),
    (f"all but {GRAPHS} and {KEPT}", frozenset(PIECES) - {GRAPHS, KEPT}),
)
"""Rows without attention or triangle multiplication have no fused blocks either."""
LADDER = [("plain", frozenset[str]())]
LADDER += [(f"+ {piece}", frozenset(PIECES[: i + 1])) for i, piece in enumerate(PIECES)]
ROWS = {"eager": LADDER[:2], "recorded": LADDER[2:], "beside": BESIDE}


class PlainOptimizer:
    """PyTorch's best over the tensors one by one, behind the calls of `FlatOptimizer`."""

    def __init__(self, model: nn.Module, config: OptimConfig, recorded: bool) -> None:
        self.max_norm, self.decay, self.recorded = config.max_norm, config.ema_decay, recorded
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        for p in self.parameters:  # no views of the flat buffers of `Step` any more
            p.data, p.grad = p.data.clone(), torch.zeros_like(p)
        self.weights = [p.detach() for p in self.parameters]
        self.ema = [p.clone() for p in self.weights]
        self.adam = torch.optim.Adam(self.parameters, lr=1e-3, eps=config.eps, fused=True)

    def zero_grad(self) -> None:
        self.adam.zero_grad(set_to_none=not self.recorded)

    def backward(self, loss: Tensor) -> None:
        if not self.recorded:
            torch.autograd.backward(loss)
            return
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        there = [(p.grad, g) for p, g in zip(self.parameters, found, strict=True) if g is not None]
        torch._foreach_add_([to for to, _ in there], [g for _, g in there])

    def gather(self, samples: int) -> None:
        pass

    def step(self, number: int) -> None:
        nn.utils.clip_grad_norm_(self.parameters, self.max_norm, foreach=True)
        self.adam.step()
        torch._foreach_lerp_(self.ema, self.weights, 1 - self.decay)


class Rung(Step):
    """A training step with some of `PIECES`."""

    def __init__(self, has: frozenset[str], preset: str, device: torch.device) -> None:
        how = "graph" if GRAPHS in has and device.type == "cuda" else "eager"
        precision = "bf16" if device.type == "cuda" else "fp32"
        super().__init__(Case("torch", precision, how, KEPT not in has, 0), preset, device)
        self.swapped = swap(self.model, has)
        if OPTIMIZER in has:
            fused = device.type == "cuda"
            self.optimizer = FlatOptimizer(self.model, OptimConfig(), fused=fused)
        else:
            self.optimizer = PlainOptimizer(self.model, OptimConfig(), how == "graph")  # type: ignore[assignment]
        self.replay = self._replay() if how == "graph" else None  # of this optimizer's backward


def swap(model: nn.Module, has: Iterable[str]) -> dict[str, int]:
    """Fuses the modules of these pieces, and counts them."""
    has = set(has)
    wanted = set().union(*(names for piece, names in OPERATORS.items() if piece in has))
    if not has >= {"attention", "triangle multiplication"}:  # blocks call these themselves
        wanted -= {"FusedEvoformerBlock", "FusedPairStack", "FusedTemplateBlock"}
    counts: dict[str, int] = {}
    for module in list(model.modules()):
        answers = (rule(module) for rule in RULES)
        form = next((answer for answer in answers if answer is not None), None)
        if isinstance(form, type) and form.__name__ in wanted:
            fuse(module, form, recorded=False)
            counts[form.__name__] = counts.get(form.__name__, 0) + 1
    return counts


def measured(name: str, has: frozenset[str], options: argparse.Namespace) -> dict[str, Any]:
    """What a row takes; one that does not fit in memory says so."""
    began = time.perf_counter()
    device = torch.device(options.device)
    forget(device)
    found: dict[str, Any] = {"name": name, "has": [piece for piece in PIECES if piece in has]}
    try:
        rung = Rung(has, options.preset, device)
        found["swapped"] = rung.swapped
        found |= rung.measure(batch_of(options.preset, 0, device), 2, options.repeats)
    except RuntimeError as error:  # memory, or a recording that is not possible
        found["error"] = str(error).splitlines()[0]
    found["seconds_in_all"] = round(time.perf_counter() - began, 1)
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--kinds", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--limit", type=float, default=280, help="seconds for the whole run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    result: dict[str, Any] = {
        "benchmark": "ladder",
        "command": command(__file__),
        "machine": machine(options), "preset": options.preset,
        "shapes": PRESETS[options.preset][1] | {"batch_size": 1}, "precision": "bf16",
        "warm_up": 2, "repeats": options.repeats, "left_out": [],
        **{kind: [] for kind in options.kinds},
    }  # fmt: skip
    if options.device == "cpu":
        result["precision"] = "fp32"
    for kind in options.kinds:
        for name, has in ROWS[kind]:
            if time.perf_counter() - began > options.limit:
                result["left_out"].append(name)
            else:
                result[kind].append(measured(name, has, options))
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

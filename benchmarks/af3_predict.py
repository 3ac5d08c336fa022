"""A whole prediction of OpenFold3, Boltz or Protenix, its own code, before and after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_predict.py DATA --project protenix --out PATH

DATA, batches and weights are those of `af3_step.py`; entries with fewer tokens are passed over.
What a prediction is, `af3_step_openfold3`, `af3_step_boltz` and `af3_step_protenix` say: trunk with
`--recycles` (3, as all three have it), `--samples` structures (1: Boltz' own number, the others
draw 5) by `--denoising` steps (200, as all three have it), confidence heads. Evaluation mode,
bfloat16 by autocast with the parts in float32 that the project predicts so, TF32 allowed;
`--precision float32` for all in float32, as Boltz-1 alone can.

Ways: `project` with the project's own kernels where it has some, `plain` with PyTorch's operators
alone, `cuequivariance` with its switch for that library; `fused` is `to_fused(model)`, `recorded`
`to_fused(model, cuda_graphs=True)`.

`total_s` and its parts: median, first and third quartile of `--repeats` predictions behind a short
one; wall clock, the GPU waited for where trunk, sampling and confidence end. `peak_gb`: the most of
a prediction, weights included. The short one, without recycles and with SHORT denoising steps, is
compared with the first way's, from the same noise: `single` and `pairs`, relative difference of
what the trunk gives; `rmsd`, of atoms after superposition, in angstrom, the most of all samples,
beside `spread`, their distance from their centre. Proof on a laptop: `--tiny`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import time
from typing import Any

import numpy as np
import torch
from af3_projects import Project
from af3_step import batches, measure, parser, prepared, settled
from recording import quartiles
from torch import Tensor, nn

from evofeed.protein.chain_numbers import superposed

WAYS = ("project", "cuequivariance", "fused", "recorded", "plain")
PARTS = ("trunk", "sampling", "confidence")
SHORT = 4


class Predictor:
    """A model of one way that notes when the parts of its predictions end.

    Attributes:
        trunk: single and pairs that the last trunk gave, if they are wanted; they cost a copy.
    """

    def __init__(
        self, first: nn.Module, project: Project, way: str, options: argparse.Namespace
    ) -> None:
        self.project, self.options = project, options
        self.model = prepared(first, project, way, options)
        self.trunk: list[Tensor] | None = None
        self.ends: dict[str, float] = {}
        trunk, confidence = (self.model.get_submodule(name) for name in project.borders)
        trunk.register_forward_hook(self._trunk_ends)
        confidence.register_forward_pre_hook(lambda *_: self._end("sampling"))

    def _end(self, part: str) -> None:
        if self.options.device != "cpu":
            torch.cuda.synchronize()
        self.ends[part] = time.perf_counter()

    def _trunk_ends(self, module: nn.Module, args: Any, made: tuple[Tensor, Tensor]) -> None:
        self._end("trunk")  # of its last pass, which comes last
        if self.trunk is not None:
            self.trunk = [each.float().cpu() for each in made]

    def run(
        self, batch: dict[str, Any], recycles: int, steps: int
    ) -> tuple[Tensor, dict[str, float]]:
        """Samples, always from the same noise, and the seconds of each part."""
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(self.options.seed)
        narrow = self.options.precision == "bfloat16"
        self._end("")
        with torch.no_grad(), torch.autocast(self.options.device, torch.bfloat16, enabled=narrow):
            made = self.project.predict(self.model, batch, recycles, steps)
        self._end("confidence")
        ends = [self.ends[part] for part in ("", *PARTS)]
        spent = [end - start for start, end in itertools.pairwise(ends)]
        return made, dict(zip(PARTS, spent, strict=True))


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Relative difference of all numbers together."""
    return float(f"{float((ours - theirs).norm() / theirs.norm()):.3g}")


def compared(ours: list[Tensor], theirs: list[Tensor]) -> dict[str, float]:
    """Single, pairs and samples of a way beside another's."""
    found = dict(zip(("single", "pairs"), map(apart, ours, theirs), strict=False))
    away = [
        float(np.sqrt(np.square(superposed(a, b) - b).sum(-1).mean()))
        for a, b in zip(ours[2].numpy(), theirs[2].numpy(), strict=True)
    ]
    centred = theirs[2] - theirs[2].mean(1, keepdim=True)
    spread = float(centred.square().sum(-1).mean().sqrt())
    return found | {"rmsd": float(f"{max(away):.3g}"), "spread": float(f"{spread:.3g}")}


FIRST: dict[int, tuple[str, list[Tensor]]] = {}
"""The first way at each size, and what it predicts."""


def row(
    first: nn.Module, project: Project, way: str, tokens: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One way at one size."""
    with contextlib.closing(batches(project, tokens, options)) as data:
        batch = next(data)
    predictor = Predictor(first, project, way, options)
    predictor.trunk = []
    short = predictor.run(batch, 0, SHORT)[0].float().cpu()
    made, predictor.trunk = [*predictor.trunk, short], None
    other, theirs = FIRST.setdefault(tokens, (way, made))
    found = {"atoms": short.shape[1], "compared_with": other, **compared(made, theirs)}
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    spent = [
        predictor.run(batch, options.recycles, options.denoising)[1] for _ in range(options.repeats)
    ]
    found["total_s"] = quartiles([sum(each.values()) for each in spent], 3)
    found |= {f"{part}_s": quartiles([each[part] for each in spent], 3) for part in PARTS}
    if options.device != "cpu":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return found


def main() -> None:
    made = parser(__doc__, WAYS)
    made.add_argument("--samples", type=int, default=1)
    made.add_argument("--denoising", type=int, default=200, help="steps of sampling")
    made.add_argument("--repeats", type=int, default=2)
    made.set_defaults(predicts=True, recycles=3, tokens=[1024, 2048])
    options = settled(made)
    if options.device == "cpu":
        options.samples, options.denoising, options.recycles = 2, 2, 1
    measure(options, row, ("samples", "denoising", "repeats"))


if __name__ == "__main__":
    main()

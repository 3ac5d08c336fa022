"""Can the model learn at all: eight fixed samples, the tiny preset, the curve of every loss.

    python -m tests.trainer.model.overfit INPUTS --steps 960 --out overfit_fixed.json

`INPUTS` is a folder of raw data (alignments and mmCIF); its chains with a known
structure are filled up to eight with synthetic ones. Crop 32, no recycling, FAPE
not clamped, so that a short run shows it fall. A test repeats the first steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from benchmarks.recording import about, save
from tests.trainer.synthetic_batch import synthetic_batch
from torch import Tensor

from evofeed.featurize import discover, featurize_chain
from evofeed.loader import LoaderConfig, sample_batch
from evofeed.loader.draws import Crop
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import MASK
from evofeed.trainer import AlphaFold, AlphaFoldLoss, LossConfig, structure_metrics, tiny
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run.flat import FlatOptimizer

SAMPLES = 8
SIZES = {"num_res": 32, "num_seq": 8, "num_extra_seq": 16, "num_templates": 2}
OPTIM = OptimConfig(learning_rate=1e-3, warmup_steps=20, ema_decay=0.0)
LOSS = LossConfig(masked_msa=0.2)
"""Masked MSA is learnt by heart first; at its usual weight it hides the rest for long."""


class FirstRows(RecycleDraws):
    """Draws that leave the MSA's order alone and ask for every seventh cell, as [MASK].

    No random number, so the curve outlives every change of the loader's generator.
    """

    def __init__(self) -> None:
        """It takes no key."""

    def block_starts(self, num_rows: int) -> list[int]:
        return []

    def distillation_order(self, count: int) -> Tensor:
        return torch.arange(count)

    row_order = extra_order = distillation_order

    def mask_position(self, num_rows: int, num_res: int) -> Tensor:
        return (torch.arange(num_rows * num_res) % 7 == 3).view(num_rows, num_res)

    def replacement(self, msa: Tensor, profile_counts: Tensor) -> Tensor:
        return torch.full(msa.shape, MASK)


def samples(records: Sequence[ChainRecord]) -> list[tuple[str, dict[str, Tensor]]]:
    """Eight named batches of one: the records with a structure, then synthetic chains."""
    length = SIZES["num_res"]
    config = LoaderConfig(
        crop_size=length,
        max_msa_clusters=SIZES["num_seq"],
        max_extra_msa=SIZES["num_extra_seq"],
        max_templates=SIZES["num_templates"],
        num_blocks=0,
    )
    named = []
    for record in [r for r in records if r.all_atom_mask is not None][:SAMPLES]:
        crop = Crop(start=(record.num_res - length) // 2, length=length, templates=())
        named.append((record.chain_id, sample_batch(record, config, crop, [FirstRows()])))
    for seed in range(SAMPLES - len(named)):
        named.append((f"synthetic{seed}", synthetic_batch(**SIZES, seed=seed)))
    return [(name, batch | {"use_clamped_fape": torch.zeros(1)}) for name, batch in named]


def training(batches: Sequence[dict[str, Tensor]], steps: int) -> Iterator[dict[str, float]]:
    """Every step's loss terms and lDDT-Ca; one batch a step, in turn."""
    torch.manual_seed(0)
    model, loss = AlphaFold(tiny().model).train(), AlphaFoldLoss(LOSS)
    optimizer = FlatOptimizer(model, OPTIM)
    for step in range(steps):
        batch = batches[step % len(batches)]
        optimizer.zero_grad()
        outputs = model(batch)
        value, terms = loss(outputs, batch)
        value.backward()
        optimizer.gather(1)
        optimizer.step(step)
        truth = batch["all_atom_positions"], batch["all_atom_mask"]
        lddt = structure_metrics(outputs["final_atom_positions"].detach(), *truth)["lddt_ca"]
        yield {name: float(term) for name, term in terms.items()} | {"lddt_ca": float(lddt.mean())}


def rounds(steps: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Mean of every term over each pass through the samples."""
    groups = [steps[i : i + SAMPLES] for i in range(0, len(steps) - SAMPLES + 1, SAMPLES)]
    return {
        name: [round(statistics.fmean(step[name] for step in group), 4) for group in groups]
        for name in steps[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", help="folder of raw data")
    parser.add_argument("--steps", type=int, default=960)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    named = samples([featurize_chain(source) for source in discover(options.inputs)])
    steps: list[dict[str, float]] = []
    for terms in training([batch for _, batch in named], options.steps):
        steps.append(terms)
        if len(steps) % (5 * SAMPLES) == 0:
            last = {k: round(v[-1], 3) for k, v in rounds(steps).items()}
            print(len(steps), json.dumps(last), flush=True)
    result = about("torch") | {
        "benchmark": "overfit",
        "preset": "tiny",
        "samples": [name for name, _ in named],
        "shapes": SIZES,
        "first_steps": steps[:SAMPLES],
        "rounds": rounds(steps),
    }
    save(options.out, result)


if __name__ == "__main__":
    main()

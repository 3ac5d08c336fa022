"""Validation on held-out chains: the same chains and crops every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evofeed.protein.chain_numbers import superposed
from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.losses.chain_labels import flat_batch, with_assigned_truth
from evofeed.trainer.losses.lddt import lddt
from evofeed.trainer.losses.metrics import dockq, structure_metrics
from evofeed.trainer.losses.violation import find_structural_violations, violation_metrics
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.precision import autocast
from evofeed.trainer.run.settings import parts_of


def validator(
    config: TrainConfig,
    model: nn.Module,
    batches: Callable[[], Iterable[dict[str, Tensor]]],
    world: World,
    picture: Path | None = None,
) -> Callable[[], dict[str, float]]:
    """Gives the mean of the structure metrics, by name, over batches that are the same every time.

    The ranks measure their own batches and share the result. The first rank keeps the atoms of
    its first chain, known and as predicted first and last (superposed), for the run report.

    The model is measured as it is, in evaluation mode, and `picture` is the file for those atoms.
    """
    loss = parts_of(config).loss

    def measure(batch: dict[str, Tensor], first: bool) -> dict[str, Tensor]:
        with autocast(config.precision, world.device.type):
            outputs = model(batch)
        batch = with_assigned_truth(outputs, batch)
        atoms = (
            outputs["final_atom_positions"], batch["all_atom_positions"], batch["all_atom_mask"],
        )  # fmt: skip
        if first and picture and world.is_first and atoms[0][0].isfinite().all():
            save_structure(outputs, batch, picture)
        metrics = structure_metrics(*atoms)
        atom14 = outputs["sm"]["positions"][-1].float()
        violations = find_structural_violations(batch, atom14, loss)
        finite = atom14.flatten(1).isfinite().all(1)  # of nan every comparison is false
        for name, value in violation_metrics(batch, atom14, violations).items():
            metrics[name] = value.where(finite, torch.nan)
        if "asym_id" in batch:
            metrics |= complex_metrics(outputs, batch)
        return {name: value.float().mean() for name, value in metrics.items()}

    @torch.no_grad()
    def validate() -> dict[str, float]:
        sums: dict[str, Tensor] = {}
        count = 0
        for batch in map(flat_batch, batches()):
            for name, value in measure(batch, first=count == 0).items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value
            count += 1
        names = sorted(sums)
        means = torch.stack([sums[name] for name in names]).double() / count
        world.mean(means)
        return dict(zip(names, means.tolist(), strict=True))

    return validate


def complex_metrics(outputs: Mapping[str, Any], batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """`dockq` and `interface_lddt` (of CA atoms of different chains) of each complex, 0 without an
    interface, and `iptm`, what the model thinks of it."""
    samples = zip(
        outputs["final_atom_positions"], batch["all_atom_positions"], batch["all_atom_mask"],
        batch["asym_id"], strict=True,
    )  # fmt: skip
    found = {"dockq": torch.stack([dockq(*sample).nan_to_num(0.0) for sample in samples])}
    ca = ATOM_ORDER["CA"]
    found["interface_lddt"] = lddt(
        outputs["final_atom_positions"][..., ca, :].double(),
        batch["all_atom_positions"][..., ca, :].double(), batch["all_atom_mask"][..., ca].double(),
        eps=0.0, per_residue=False, between=batch["asym_id"],
    ).nan_to_num(0.0)  # fmt: skip
    return found | ({"iptm": outputs["iptm_score"]} if "iptm_score" in outputs else {})


def save_structure(outputs: Mapping[str, Any], batch: Mapping[str, Tensor], path: Path) -> None:
    """The first sample of a batch beside its prediction, superposed, where its CA is known.

    Args:
        path: `.npz` file for `pred`, `true` and, of the first call, `first`: atoms
            `[n, 37, 3]` in ångström; `pred_mask` and `true_mask` `[n, 37]`, `aatype`, `chain`
            (from 1), `plddt` (0 to 100) and `residue` (from 0) `[n]`.
    """
    ca = ATOM_ORDER["CA"]
    known = batch["all_atom_mask"][0, :, ca] > 0

    def of(values: Tensor) -> np.ndarray:
        return values[0, known].float().cpu().numpy()

    pred, true = of(outputs["final_atom_positions"]), of(batch["all_atom_positions"])
    residue = batch["residue_index"]
    found: dict[str, Any] = {
        "pred": superposed(pred[:, ca], true[:, ca], pred).astype(np.float32), "true": true,
        "pred_mask": of(outputs["final_atom_mask"]), "true_mask": of(batch["all_atom_mask"]),
        "plddt": of(outputs["plddt"]), "aatype": of(batch["aatype"]).astype(int),
        "residue": of(residue).astype(int),
        "chain": of(batch.get("asym_id", torch.ones_like(residue))).astype(int),
    }  # fmt: skip
    if path.is_file():
        with np.load(path) as before:
            found["first"] = before["first"]
    if found.setdefault("first", found["pred"]).shape != found["pred"].shape:
        found["first"] = found["pred"]  # of a folder whose held-out chain has changed
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **found)


def held_out(
    config: TrainConfig, dataset: Any, world: World
) -> Callable[[], Iterator[dict[str, Tensor]]]:
    """Gives the first `validate_batches` of a held-out dataset, the same ones at every call.

    The loader starts at the same place with the same seed, with all recycles, the best templates,
    no blocks of the MSA deleted and no chance acceptance; no chain comes twice in an epoch, but
    to fill the last batch. The ranks share the batches.
    """
    from evofeed.loader import FeatureLoader

    settings = parts_of(config).loader
    batches = max(1, config.validate_batches // world.readers)
    loader = FeatureLoader(
        dataset,
        settings.replace(
            chains=None,  # these three say what is trained on
            released_from="",
            released_until="",
            num_blocks=0,  # these two as in OpenFold's evaluation
            subsample_templates=False,
            weighted=False,
            uniform_recycling=False,
            global_batch_size=None,
            epoch_len=None,
            drop_last=False,
        ),
        rank=world.reader,
        world_size=world.readers,
        seed=config.seed + 1,
        device=world.device,
        reader="thread",
        num_threads=1,
        prefetch=2,
    )
    start = loader.state_dict()

    def again() -> Iterator[dict[str, Tensor]]:
        loader.load_state_dict(start)
        yield from islice(loader, batches)
        loader.close()

    return again

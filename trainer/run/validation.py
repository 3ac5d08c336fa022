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
    """A function that returns mean structure metrics by name, over the same batches at every call.

    Each rank measures its batches, and all get the mean. The first rank saves the atoms of its
    first chain for the run report: known, and predicted by the first and the last validation
    (superposed). `picture` is the file for them.

    The caller sets the model to evaluation mode.
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
        finite = atom14.flatten(1).isfinite().all(1)  # comparisons with nan are False
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
    interface, and the model's `iptm`."""
    samples = zip(
        outputs["final_atom_positions"], batch["all_atom_positions"], batch["all_atom_mask"],
        batch["asym_id"], strict=True,
    )  # fmt: skip
    metrics = {"dockq": torch.stack([dockq(*sample).nan_to_num(0.0) for sample in samples])}
    ca = ATOM_ORDER["CA"]
    metrics["interface_lddt"] = lddt(
        outputs["final_atom_positions"][..., ca, :].double(),
        batch["all_atom_positions"][..., ca, :].double(), batch["all_atom_mask"][..., ca].double(),
        eps=0.0, per_residue=False, between=batch["asym_id"],
    ).nan_to_num(0.0)  # fmt: skip
    return metrics | ({"iptm": outputs["iptm_score"]} if "iptm_score" in outputs else {})


def save_structure(outputs: Mapping[str, Any], batch: Mapping[str, Tensor], path: Path) -> None:
    """Saves the first sample of a batch with its superposed prediction, where its CA is resolved.

    Args:
        path: `.npz` file for `pred`, `true` and, from the first call, `first`: atoms
            `[n, 37, 3]` in ångström; `pred_mask` and `true_mask` `[n, 37]`, `aatype`, `chain`
            (from 1), `plddt` (0 to 100) and `residue` (from 0) `[n]`.
    """
    ca = ATOM_ORDER["CA"]
    resolved = batch["all_atom_mask"][0, :, ca] > 0

    def select(values: Tensor) -> np.ndarray:
        return values[0, resolved].float().cpu().numpy()

    pred, true = select(outputs["final_atom_positions"]), select(batch["all_atom_positions"])
    residue = batch["residue_index"]
    arrays: dict[str, Any] = {
        "pred": superposed(pred[:, ca], true[:, ca], pred).astype(np.float32), "true": true,
        "pred_mask": select(outputs["final_atom_mask"]),
        "true_mask": select(batch["all_atom_mask"]),
        "plddt": select(outputs["plddt"]), "aatype": select(batch["aatype"]).astype(int),
        "residue": select(residue).astype(int),
        "chain": select(batch.get("asym_id", torch.ones_like(residue))).astype(int),
    }  # fmt: skip
    if path.is_file():
        with np.load(path) as before:
            arrays["first"] = before["first"]
    if arrays.setdefault("first", arrays["pred"]).shape != arrays["pred"].shape:
        arrays["first"] = arrays["pred"]  # the held-out chain of this folder has changed
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def held_out(
    config: TrainConfig, dataset: Any, world: World
) -> Callable[[], Iterator[dict[str, Tensor]]]:
    """A function that returns the first `validate_batches` of a held-out dataset at every call.

    The loader starts with the same state and seed, with all recycles, the best templates, no
    deleted blocks of the MSA and no random acceptance; no chain repeats in an epoch, except to
    fill the last batch. The batches are distributed over the ranks.
    """
    from evofeed.loader import FeatureLoader

    settings = parts_of(config).loader
    batches = max(1, config.validate_batches // world.readers)
    loader = FeatureLoader(
        dataset,
        settings.replace(
            chains=None,  # these three select the training set
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

    def first_batches() -> Iterator[dict[str, Tensor]]:
        loader.load_state_dict(start)
        yield from islice(loader, batches)
        loader.close()

    return first_batches

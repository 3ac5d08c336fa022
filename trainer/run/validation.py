"""How good the model is on held-out chains: the same chains and crops every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evofeed.residues import ATOM_ORDER
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.losses.chain_labels import flat_batch, with_assigned_truth
from evofeed.trainer.losses.dockq import dockq
from evofeed.trainer.losses.lddt import lddt
from evofeed.trainer.losses.metrics import structure_metrics, superpose
from evofeed.trainer.losses.violation import find_structural_violations, violation_metrics
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.precision import autocast
from evofeed.trainer.run.settings import loader_config, loss_config


class Validator:
    """Mean of the structure metrics over batches that are the same every time.

    The ranks measure their own batches and share the result. The first rank keeps the CA atoms
    of its first chain, as predicted last (superposed) and as they are, for the run report.

    Args:
        config: of the run; gives the precision.
        model: measured as it is, in evaluation mode.
        batches: gives this rank's batches again.
        world: who shares the work.
        picture: file for those atoms; None keeps none.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        batches: Callable[[], Iterable[dict[str, Tensor]]],
        world: World,
        picture: Path | None = None,
    ) -> None:
        self.model, self.world, self._batches = model, world, batches
        self._picture = picture if world.is_first else None
        self._precision = config.precision
        self._loss = loss_config(config)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """The metrics' means, by name."""
        sums: dict[str, Tensor] = {}
        count = 0
        for batch in map(flat_batch, self._batches()):
            for name, value in self._measure(batch, first=count == 0).items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value
            count += 1
        names = sorted(sums)
        means = torch.stack([sums[name] for name in names]).double() / count
        self.world.mean(means)
        return dict(zip(names, means.tolist(), strict=True))

    def _measure(self, batch: dict[str, Tensor], first: bool) -> dict[str, Tensor]:
        device = self.world.device.type
        with autocast(self._precision, device):
            outputs = self.model(batch)
        batch = with_assigned_truth(outputs, batch, self._loss.max_chains)
        atoms = (
            outputs["final_atom_positions"], batch["all_atom_positions"], batch["all_atom_mask"],
        )  # fmt: skip
        if first and self._picture and atoms[0][0].isfinite().all():
            save_traces(atoms[0][0], atoms[1][0], atoms[2][0], self._picture)
        metrics = structure_metrics(*atoms)
        atom14 = outputs["sm"]["positions"][-1].float()
        violations = find_structural_violations(batch, atom14, self._loss)
        finite = atom14.flatten(1).isfinite().all(1)  # of nan every comparison is false
        for name, value in violation_metrics(batch, atom14, violations).items():
            metrics[name] = value.where(finite, torch.nan)
        if "asym_id" in batch:
            metrics |= complex_metrics(outputs, batch)
        return {name: value.float().mean() for name, value in metrics.items()}


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


def save_traces(pred: Tensor, true: Tensor, mask: Tensor, path: Path) -> None:
    """CA atoms of a chain, `pred` superposed on `true`, where both are known.

    Args:
        pred: predicted atoms `[L, 37, 3]`, ångström.
        true: known atoms, likewise.
        mask: 1 where an atom is known, `[L, 37]`.
        path: `.npz` file for `pred` and `true`, `[n, 3]` each.
    """
    ca = ATOM_ORDER["CA"]
    known = mask[:, ca] > 0
    kept, wanted = pred[known, ca].double(), true[known, ca].double()
    moved = superpose(kept, wanted, torch.ones_like(kept[:, 0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, pred=moved.cpu().numpy(), true=wanted.cpu().numpy())


def held_out(
    config: TrainConfig, dataset: Any, world: World
) -> Callable[[], Iterator[dict[str, Tensor]]]:
    """Gives the first `validate_batches` of a held-out dataset, the same ones at every call.

    The loader starts at the same place with the same seed, with all recycles, the best templates,
    no blocks of the MSA deleted and no chance acceptance; no chain comes twice in an epoch, but
    to fill the last batch. The ranks share the batches.
    """
    from evofeed.loader import FeatureLoader

    settings = loader_config(config, world)
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

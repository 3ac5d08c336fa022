"""How good the model is on held-out chains: the same chains and crops every time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evofeed.trainer.losses.metrics import structure_metrics
from evofeed.trainer.run.config import TrainConfig
from evofeed.trainer.run.distributed import World


class Validator:
    """Mean of the structure metrics over the first batches of a held-out dataset.

    Every call sees the same samples: the loader starts at the same place with the
    same seed, with all recycles and without chance acceptance. The ranks share
    the batches and the result.

    Args:
        config: of the run; gives precision, number of batches and crop.
        model: measured as it is, in evaluation mode.
        dataset: held-out chains.
        world: who shares the work.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, dataset: Any, world: World) -> None:
        from evofeed.loader import FeatureLoader
        from evofeed.trainer.run.build import loader_config

        settings = loader_config(config, world)
        self.model, self.world = model, world
        self._precision = config.precision
        self._batches = max(1, config.validate_batches // world.size)
        self._loader = FeatureLoader(
            dataset,
            settings.replace(
                weighted=False,
                uniform_recycling=False,
                global_batch_size=None,
                epoch_len=self._batches * world.size * settings.batch_size,
            ),
            rank=world.rank,
            world_size=world.size,
            seed=config.seed + 1,
            device=world.device,
            reader="thread",
            num_threads=1,
            prefetch=2,
        )
        self._start = self._loader.state_dict()

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """The metrics' means, by name."""
        self._loader.load_state_dict(self._start)
        sums: dict[str, Tensor] = {}
        count = 0
        for batch in self._loader:
            for name, value in self._measure(batch).items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value
            count += 1
        self._loader.close()
        names = sorted(sums)
        means = torch.stack([sums[name] for name in names]).double() / count
        self.world.mean(means)
        return dict(zip(names, means.tolist(), strict=True))

    def _measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        device = self.world.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._precision == "bf16"):
            outputs = self.model(batch)
        metrics = structure_metrics(
            outputs["final_atom_positions"], batch["all_atom_positions"], batch["all_atom_mask"]
        )
        return {name: value.float().mean() for name, value in metrics.items()}

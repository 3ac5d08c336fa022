"""Lightning: a data module whose stream a checkpoint continues exactly.

python examples/lightning_loop.py data/
"""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as pl
import torch

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny

CONFIG = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=4)


class Features(pl.LightningDataModule):
    """Batches that are on the device already."""

    loader = state = None

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri = uri

    def train_dataloader(self) -> FeatureLoader:
        """The same loader each epoch."""
        if self.loader is None:
            ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
            self.loader = FeatureLoader(Dataset.open(self.uri), CONFIG, **ranks)
            if self.state is not None:
                self.loader.load_state_dict(self.state)
        return self.loader

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Nothing to move."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.state = state


class Model(pl.LightningModule):
    """AlphaFold2, small."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.loss = AlphaFold(tiny().model), AlphaFoldLoss(tiny().loss)
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        """The loss."""
        loss, _ = self.loss(self.model(batch), batch)
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def main(uri: str, **options: Any) -> list[float]:
    """Train an epoch; returns the losses."""
    model, data = Model(), Features(uri)
    pl.Trainer(max_epochs=1, devices=1, logger=False, **options).fit(model, data)
    return model.losses


if __name__ == "__main__":
    print(main(sys.argv[1]))

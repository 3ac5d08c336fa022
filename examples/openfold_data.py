"""OpenFold's own training on evofeed's batches: the data module of its `train_openfold.py`.

python examples/openfold_data.py data/

In `main` of OpenFold's script, `data_module = Features(uri)` stands for `OpenFoldDataModule(...)`;
model, loss, optimiser, checkpoints and all options that are not of data stay.
"""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as pl

from evofeed.loader import FeatureLoader, LoaderConfig, openfold_batch
from evofeed.store import Dataset


class Features(pl.LightningDataModule):
    """Batches that are on the device, recycles last; a checkpoint goes on with the very next."""

    loader = state = None

    def __init__(self, uri: str, config: LoaderConfig | None = None) -> None:
        super().__init__()
        self.uri = uri
        self.config = config or LoaderConfig.initial_training()

    def setup(self, stage: str | None = None) -> None:
        """Nothing; OpenFold's script calls it without a stage."""

    def train_dataloader(self) -> FeatureLoader:
        """The same loader each epoch."""
        if self.loader is None:
            ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
            self.loader = FeatureLoader(Dataset.open(self.uri), self.config, **ranks)
            if self.state is not None:
                self.loader.load_state_dict(self.state)
        return self.loader

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Nothing to move; OpenFold's form."""
        return openfold_batch(batch)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.state = state


if __name__ == "__main__":
    with FeatureLoader(Dataset.open(sys.argv[1]), LoaderConfig.initial_training()) as batches:
        for name, value in openfold_batch(next(iter(batches))).items():
            print(name, tuple(value.shape))

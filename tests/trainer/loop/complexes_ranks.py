"""A short run on complexes that ranks or one process alone can do."""

from __future__ import annotations

from pathlib import Path

from evofeed.trainer import tiny_multimer
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.run.train import train

CONFIG: TrainConfig = tiny_multimer().train.replace(
    steps=2, validate_every=2, validate_batches=1, profile_steps=0, loader={"crop_size": 32}
)


def train_complexes(dataset: str, out: Path, samples: int) -> None:
    """Two steps of so many samples of each rank."""
    train(CONFIG.replace(accumulate=samples, validate_every=0), dataset, out=out, device="cpu")

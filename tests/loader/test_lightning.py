"""The Lightning example of docs/loader.md: the same stream, exact resume from its checkpoints.

Lightning is no requirement of this project; this runs where it is there, as on GPU machines.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.records import small_dataset

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
CONFIG = LoaderConfig(
    crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=1, epoch_len=10
)


def test_a_checkpoint_of_lightning_goes_on_with_the_very_next_batch(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pl: Any = pytest.importorskip("pytorch_lightning")
    uri = small_dataset(tmp_path / "d").uri

    class Features(pl.LightningDataModule):
        def train_dataloader(self) -> FeatureLoader:
            rank, world = self.trainer.global_rank, self.trainer.world_size
            self.loader = FeatureLoader(Dataset.open(uri), CONFIG, rank=rank, world_size=world)
            return self.loader

        def transfer_batch_to_device(self, batch: Any, *_: object) -> Any:
            return batch

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(49, 1)
            self.seen: list[tuple[int, ...]] = []

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            sums = int(batch["true_msa"].sum()), int(batch["aatype"].sum())
            self.seen.append((self.current_epoch, number, *sums))
            return self.layer(batch["msa_feat"]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(model: Model, checkpoint: Path | None = None, **options: Any) -> Model:
        off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = pl.Trainer(
            devices=1, use_distributed_sampler=False, default_root_dir=tmp_path, **off, **options
        )
        data = Features()
        trainer.fit(model, data, ckpt_path=checkpoint)
        data.loader.close()
        return model

    want = fit(Model(), max_epochs=3, enable_checkpointing=False).seen
    assert len(want) == 30
    keep = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path, every_n_train_steps=7, save_top_k=-1, filename="{step}"
    )
    fit(Model(), max_steps=14, callbacks=[keep])
    for step in (7, 14):
        saved = tmp_path / f"step={step}.ckpt"
        rest = fit(Model(), saved, max_epochs=3, enable_checkpointing=False).seen
        assert rest == want[step:]

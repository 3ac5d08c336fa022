"""The Lightning example of docs/loader.md: the same stream, exact resume from any checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.pages import block
from tests.loader.records import small_dataset

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = "LoaderConfig(crop_size=8, max_msa_clusters=4, max_extra_msa=4, epoch_len=10)"


@pytest.mark.system
def test_a_checkpoint_of_lightning_continues_with_the_very_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pytorch_lightning as pl  # here: it takes three seconds, of every worker that collects

    monkeypatch.chdir(tmp_path)
    small_dataset(tmp_path / "data")
    code = block("class Features").replace("LoaderConfig.initial_training(epoch_len=10_000)", SMALL)
    names: dict[str, Any] = {}
    exec(compile(code[: code.index("Trainer(max")], "loader.md", "exec"), names)

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

    def fit(checkpoint: Path | None = None, **options: Any) -> list[tuple[int, ...]]:
        off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = pl.Trainer(devices=1, default_root_dir=tmp_path, **off, **options)
        model, data = Model(), names["Features"]()
        trainer.fit(model, data, ckpt_path=checkpoint)
        data.loader.close()
        return model.seen

    want = fit(max_epochs=3, enable_checkpointing=False)
    assert len(want) == 30
    keep = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path, every_n_train_steps=7, save_top_k=-1, filename="{step}"
    )
    fit(max_steps=7, callbacks=[keep])
    every = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path, every_n_epochs=1, save_top_k=-1, filename="{step}"
    )
    again = fit(max_epochs=2, callbacks=[every], reload_dataloaders_every_n_epochs=1)
    assert again == want[:20]
    for step, options in ((7, {}), (10, {"reload_dataloaders_every_n_epochs": 1})):
        saved = tmp_path / f"step={step}.ckpt"
        rest = fit(saved, max_epochs=3, enable_checkpointing=False, **options)
        assert rest == want[step:], step

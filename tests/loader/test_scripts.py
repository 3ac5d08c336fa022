"""The code in docs/loader.md runs, with small sizes on the CPU."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.loader.records import small_dataset
from tests.test_docs import blocks

from evofeed.loader import FeatureLoader

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "loader.md"


def block(containing: str) -> str:
    """The indented block of the page that contains this text."""
    (one,) = [text for text in blocks(_PAGE) if containing in text]
    return one


PRESET = "LoaderConfig.initial_training(epoch_len=10_000"
SMALL = "LoaderConfig(crop_size=8, max_msa_clusters=4, max_extra_msa=4, epoch_len=6"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset `data/` in the current folder, read by threads, which start fast."""
    small_dataset(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    threads = functools.partial(FeatureLoader, reader="thread")
    monkeypatch.setattr("evofeed.loader.FeatureLoader", threads)


def run(containing: str, changes: dict[str, str], **names: Any) -> dict[str, Any]:
    """A block of the page with some of its text changed; each change must find its text.

    Where the page has an ellipsis, the batch and the loader's state are taken down.
    """
    code = block(containing)
    take = "seen.append(int(batch['true_msa'].sum())); states.append(loader.state_dict())"
    for old, new in {PRESET: SMALL, "        ...": f"        {take}", **changes}.items():
        assert old in code, old
        code = code.replace(old, new)
    names |= {"seen": [], "states": []}
    exec(compile(code, "loader.md", "exec"), names)
    names["loader"].close()
    return names


@pytest.mark.system
def test_the_first_loop_gives_epoch_after_epoch() -> None:
    seen = run("for epoch in range(100)", {"range(100)": "range(2)"})["seen"]
    assert len(seen) == 12
    assert seen[:6] != seen[6:]


@pytest.mark.system
def test_a_ddp_script_continues_from_any_of_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    monkeypatch.setattr(dist, "init_process_group", lambda backend: None)
    changes = {
        "global_batch_size=128": "global_batch_size=2",
        "torch.cuda.set_device(rank % torch.cuda.device_count())": "",
        "range(loader.epoch, 100)": "range(loader.epoch, 3)",
    }
    try:
        whole = run("dist.init_process_group", changes, checkpoint=None)
        assert len(whole["seen"]) == 18
        for had in (2, 6, 9):  # within an epoch, at its end, within a step
            state = {"loader": whole["states"][had - 1]}
            rest = run("dist.init_process_group", changes, checkpoint=state)
            assert rest["seen"] == whole["seen"][had:]
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.system
def test_a_checkpoint_of_lightning_continues_with_the_very_next_batch(tmp_path: Path) -> None:
    import pytorch_lightning as pl  # here: it takes three seconds, of every worker that collects

    small = SMALL.replace("epoch_len=6", "epoch_len=5")
    code = block("class Features").replace(PRESET, small)
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

    steps, epochs = (
        pl.callbacks.ModelCheckpoint(
            dirpath=tmp_path, save_top_k=-1, filename="{step}", **{f"every_n_{unit}": number}
        )
        for unit, number in (("train_steps", 3), ("epochs", 1))
    )
    want = fit(max_epochs=3, callbacks=[steps, epochs])
    assert len(want) == 15
    for step, options in ((3, {}), (5, {"reload_dataloaders_every_n_epochs": 1})):
        saved = tmp_path / f"step={step}.ckpt"
        rest = fit(saved, max_epochs=3, enable_checkpointing=False, **options)
        assert rest == want[step:], step

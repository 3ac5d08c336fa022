"""A step without a finite gradient is repeated exactly, and its origin named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evofeed.base.errors import CheckpointError
from evofeed.base.run_files import NONFINITE
from evofeed.loader import FeatureLoader
from evofeed.store import Dataset
from evofeed.trainer.commands import replay
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.run.build import loader_config
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.nonfinite import Pass, keep_step
from evofeed.trainer.run.replay import replay_step
from evofeed.trainer.run.train import train


class OneBadBatch:
    """A loader whose batch number `bad` has an infinite feature; keeps what it gave."""

    def __init__(self, loader: FeatureLoader, bad: int) -> None:
        self.loader, self.bad = loader, bad
        self.given: list[dict[str, torch.Tensor]] = []

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self.loader:
            if len(self.given) == self.bad:
                batch["target_feat"] = batch["target_feat"] + float("inf")
            self.given.append(batch)
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: str) -> tuple[Path, OneBadBatch]:
    out = tmp_path_factory.mktemp("runs") / "a"
    settings = config()
    loader = FeatureLoader(
        Dataset.open(tiny_dataset), loader_config(settings, World()), device="cpu"
    )
    bad = OneBadBatch(loader, bad=1)
    train(settings, bad, out=out, device="cpu")
    loader.close()
    return out, bad


def config() -> TrainConfig:
    return PRESETS["tiny"]().train.replace(
        steps=3, checkpoint_every=0, validate_every=0, profile_steps=0
    )


@pytest.mark.system
def test_the_command_names_the_module_where_it_began(
    run: tuple[Path, OneBadBatch], capsys: pytest.CaptureFixture[str]
) -> None:
    replay(run[0] / NONFINITE / "step_00000001.rank0", device="cpu", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert not found["finite"]
    assert found["passes"][0]["first_module"].startswith("input_embedder")
    assert found["passes"][0]["gradients"]
    assert found["samples"]


@pytest.mark.system
def test_a_repeated_step_has_the_losses_of_the_first_time(
    run: tuple[Path, OneBadBatch], tmp_path: Path
) -> None:
    out, loader = run
    from evofeed.trainer.run.build import build_model

    settings = config()
    first = read_steps(out)[0]
    model, _ = build_model(settings, torch.device("cpu"))  # the weights that step 0 began with
    seed = settings.seed * 1_000_003
    entry = {"step": 0, "samples": [], "config": settings.to_dict()}
    keep_step(
        tmp_path / "step",
        entry,
        [Pass(batch=loader.given[0], seed=seed)],
        dict(model.named_parameters()),
    )
    again = replay_step(tmp_path / "step", torch.device("cpu"))
    assert again["finite"]
    assert again["passes"][0]["loss"] == pytest.approx(first["loss"], rel=1e-6)
    for name, value in again["passes"][0]["terms"].items():
        assert value == pytest.approx(first["terms"][name], rel=1e-6), name


def test_only_the_first_steps_are_kept_whole_and_the_others_say_so(tmp_path: Path) -> None:
    one = Pass(batch={"x": torch.ones(2)}, seed=1)
    for step in range(10):
        keep_step(tmp_path / f"step_{step}", {"step": step}, [one], {"w": torch.ones(1)})
    assert len(list(tmp_path.glob("*/model.safetensors"))) == 8
    with pytest.raises(CheckpointError, match="first 8"):
        replay_step(tmp_path / "step_9", torch.device("cpu"))
    with pytest.raises(CheckpointError, match="no kept step"):
        replay_step(tmp_path / "elsewhere", torch.device("cpu"))


def test_a_run_in_place_of_a_step_names_its_steps(tmp_path: Path) -> None:
    one = Pass(batch={"x": torch.ones(2)}, seed=1)
    keep_step(tmp_path / "nonfinite/step_00000004.rank0", {"step": 4}, [one], {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"nonfinite/step_00000004\.rank0: give one"):
        replay_step(tmp_path, torch.device("cpu"))

"""Boards beside steps.jsonl: imported only when asked for, and clear when they are not there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error

from evofeed.base.errors import TrainerError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.train import run

SETTINGS = TrainConfig(steps=3, precision="fp32", profile_steps=0)


def start(out: Path, steps: int = 3, **options: Any) -> None:
    parts = TinyModel(), squared_error, TinyLoader()
    run(SETTINGS.replace(steps=steps), *parts, world=World(), out=out, **options)


class Wandb:
    """Replaces the package: keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **options: Any) -> Any:
        self.calls.append(options)
        return SimpleNamespace(
            id=options["id"] or "abc123",
            log=lambda values, step: self.logged.append((step, values)),
            finish=self._finish,
        )

    def _finish(self) -> None:
        self.finished += 1


def test_weights_and_biases_gets_every_step_and_a_resumed_run_continues_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    start(tmp_path / "a", wandb="folding")
    assert wandb.calls[0]["project"] == "folding" and wandb.calls[0]["name"] == "a"
    assert wandb.calls[0]["config"]["config"]["steps"] == 3
    assert [step for step, _ in wandb.logged] == [0, 1, 2]
    wanted = {"train/loss", "train/norm", "train/samples_per_second", "time/data_wait_share"}
    assert all(wanted <= values.keys() for _, values in wandb.logged)
    start(tmp_path / "a", steps=5, wandb="folding", resume=True)
    assert wandb.calls[1]["id"] == "abc123"
    assert [step for step, _ in wandb.logged] == [0, 1, 2, 3, 4]
    assert wandb.finished == 2


def test_a_board_that_is_not_installed_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: dict[str, dict[str, Any]] = {
        "wandb": {"wandb": "folding"}, "torch.utils.tensorboard": {"tensorboard": True},
    }  # fmt: skip
    for package, options in missing.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(TrainerError, match="pip install"):
            start(tmp_path, **options)
    start(tmp_path / "without")

"""A model, a loss and a loader small enough that a test of the loop takes milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.loop import Loop

FAST = OptimConfig(warmup_steps=2, learning_rate=1e-2, ema_decay=0.9)
PARTS = ("log", "validate", "watch", "after_backward")


class TinyModel(nn.Module):
    """Two linear layers with dropout between them, run once for every recycle."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = batch["msa_feat"].mean(0)
        hidden = torch.dropout(torch.relu(self.first(x)), 0.2, self.training)
        return {"out": self.second(hidden)}


def squared_error(
    outputs: dict[str, Tensor], batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    error = (outputs["out"] - batch["target"]).pow(2).mean()
    return error, {"error": error.detach()}


class TinyLoader:
    """`per_epoch` batches an epoch; each a pure function of its global number.

    Args:
        bad: numbers of batches that hold a nan.
    """

    def __init__(
        self, *, rank: int = 0, world_size: int = 1, per_epoch: int = 6, bad: tuple[int, ...] = ()
    ) -> None:
        self.rank, self.world_size, self.per_epoch, self.bad = rank, world_size, per_epoch, bad
        self.position = 0  # samples handed out so far, by all ranks together
        self.last_ids: list[str] = []

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            number = self.position + self.rank
            self.position += self.world_size
            self.last_ids = [f"chain{number}"]
            yield _batch(number, number in self.bad)
            if self.position % self.per_epoch == 0:
                return

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def _batch(number: int, bad: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(1, 3, 4, 8, generator=generator)
    recycles = 1 + number // 100 % 2
    target = x[0].roll(1, -1) * (float("nan") if bad else 1.0)
    return {"msa_feat": x.expand(recycles, -1, -1, -1), "target": target}


def standin_loop(
    out: Path,
    steps: int,
    *,
    loader: Any = None,
    world: World | None = None,
    size: float = 1.0,
    **changes: Any,
) -> Loop:
    """A loop over them, the loss so many times its size.

    `changes` are of its configuration, or parts that a loop takes.
    """

    def loss(outputs: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        error, terms = squared_error(outputs, batch)
        return error * size, terms

    world = world or World()
    per_epoch = 6 if world.size == 1 else 24
    loader = loader or TinyLoader(rank=world.rank, world_size=world.size, per_epoch=per_epoch)
    parts = {name: changes.pop(name) for name in PARTS if name in changes}
    usual = {"precision": "fp32", "checkpoint_every": 0, "optim": FAST}
    config = TrainConfig(steps=steps, **usual | changes)
    model = TinyModel(seed=world.rank)  # the first rank's weights count
    return Loop(config, model, loss, loader, out=out, world=world, **parts)

"""What a run needs to go on where it was: written by all ranks together, taken up by all alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evofeed.base.errors import TrainerError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.gradients.exchange import Exchange
from evofeed.trainer.run.checkpoint import (
    CHECKPOINTS,
    RESIDUALS,
    Checkpoint,
    CheckpointWriter,
    newest_checkpoint,
    restore,
)
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.stream import BatchStream, Loader


@dataclass(slots=True, kw_only=True, eq=False)
class Saving:
    """Checkpoints of a running loop, whose parts these are."""

    config: TrainConfig
    world: World
    optimizer: FlatOptimizer
    exchange: Exchange
    loader: Loader
    stream: BatchStream
    result: TrainResult
    provenance: Mapping[str, Any]
    """Kept in every checkpoint."""
    _writer: CheckpointWriter = field(init=False)
    _saved: int = field(default=-1, init=False)
    """The step of the last one."""

    def __post_init__(self) -> None:
        """Writes into the run's folder."""
        self._writer = CheckpointWriter(self.result.out / CHECKPOINTS, self.config.keep_checkpoints)

    def resume(self) -> None:
        """Go on from the newest complete checkpoint, if there is one.

        Raises:
            TrainerError: it was written with another seed, or other steps.
        """
        world = self.world
        found = newest_checkpoint(self.result.out / CHECKPOINTS) if world.is_first else None
        found = world.share(found)
        if found is None:
            return
        if world.is_first:  # the others get the buffers by broadcast
            restore(found, self.optimizer)
        self._take(found)
        before = found.state.get(RESIDUALS, {})
        if any(before.get("lengths", ())):
            saved = found.tensors(RESIDUALS) if world.is_first else {}
            self.exchange.restore(before, world.share(saved))

    def _take(self, checkpoint: Checkpoint) -> None:
        state, result = checkpoint.state, self.result
        if state["seed"] != self.config.seed:
            raise TrainerError(
                f"the checkpoint was written with seed {state['seed']}, this run has "
                f"{self.config.seed}; it would not be the same run",
                path=str(checkpoint.path),
            )
        now = self.loader.state_dict()
        was, wanted = (one.get("global_batch_size") for one in (state["loader"], now))
        if was != wanted:
            raise TrainerError(
                f"its steps took {was} samples, this run's would take {wanted} (accumulate x ranks "
                "/ axial x loader.batch_size): with other ranks change accumulate, too",
                path=str(checkpoint.path),
            )
        self.loader.load_state_dict(state["loader"])
        self.stream.epochs = state["epoch"]
        result.first_step = result.step = checkpoint.step
        result.skipped = list(state["skipped"])
        result.overflows = list(state.get("overflows", ()))
        result.checkpoint = checkpoint.path

    def save(self) -> None:
        """Write a checkpoint after the step done last, unless there is one; all ranks call it."""
        result = self.result
        if self._saved == result.step:
            return
        self._saved = result.step
        layout, residuals = self.exchange.collect()
        if not self.world.is_first:
            return
        state = {
            "seed": self.config.seed,
            "epoch": self.stream.epochs,
            "skipped": result.skipped,
            "overflows": result.overflows,
            "loader": self.loader.state_dict(),
            "config": self.config.to_dict(),
            RESIDUALS: layout,
            **self.provenance,
        }
        result.checkpoint = self._writer.save(self.optimizer, result.step, state, residuals)

    def wait(self) -> None:
        """Until the last checkpoint is on disk."""
        self._writer.wait()

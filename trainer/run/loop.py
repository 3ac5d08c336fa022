"""The training loop: batches, gradients, updates, checkpoints, and the time of each part.

It has no code about proteins: it takes any module that maps a batch to outputs, any
loss that maps both to a scalar and named terms, any loader. `evofeed.trainer.run.train`
passes those of AlphaFold2.

Two rules keep runs exact. Dropout is seeded again for every sample from
`(seed, number of the sample)`, so a resumed run, or the same batch spread over
another number of ranks, draws the same masks. And no step waits for the device:
all ranks read a step's numbers one step later.
"""

from __future__ import annotations

import faulthandler
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.base.errors import TrainerError
from evofeed.base.run_files import STEPS
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.gradients.modes import exchange_of
from evofeed.trainer.log.clock import StepClock
from evofeed.trainer.log.runlog import RunLog
from evofeed.trainer.run.checkpoint import (
    CHECKPOINTS,
    RESIDUALS,
    Checkpoint,
    CheckpointWriter,
    newest_checkpoint,
    restore,
)
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.flat import FlatOptimizer, learning_rate
from evofeed.trainer.run.gradients import watch_gradients
from evofeed.trainer.run.passes import LossFunction, Passes
from evofeed.trainer.run.precision import LossScale
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.stream import (
    BatchStream,
    Loader,
    num_recycles,
    sample_names,
)
from evofeed.trainer.run.telemetry import (
    Names,
    StepNumbers,
    Telemetry,
    announced,
    note_signals,
)

_LOG = logging.getLogger(__name__)


class Loop:
    """One rank's training loop over given parts.

    Args:
        model: maps a batch to outputs; not moved, must be on the world's device.
        loss: maps outputs and batch to a scalar and named terms.
        loader: yields this rank's batches, on the world's device.
        log: log of the steps, on the first rank.
        validate: called every `validate_every` steps and after the last, with averaged weights.
        watch: called before every step with its number, for the profiler.
        provenance: saved in every checkpoint: dataset digest, versions.
        masks: dropout masks of a size that a pass draws at once: see `OnePass`.
        after_backward: called in every step with this rank's gradient, instead of averaging it;
            must call `sync_grad()`.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        loss: LossFunction,
        loader: Loader,
        *,
        out: Path,
        world: World,
        log: RunLog | None = None,
        validate: Callable[[], dict[str, float]] | None = None,
        watch: Callable[[int], None] | None = None,
        provenance: Mapping[str, Any] | None = None,
        masks: int = 1,
        after_backward: Callable[[Loop], None] | None = None,
    ) -> None:
        self._after_backward = after_backward
        self.config, self.model, self.world = config, model, world
        self.out, self.log, self.validate, self.watch = out, log, validate, watch
        self.loader = loader
        self.batch_like: dict[str, Tensor] = {}  # the first batch without its values
        on_gpu = world.device.type == "cuda"
        self.optimizer = FlatOptimizer(
            model, config.optim, fused=on_gpu and config.kernels == "fused",
            scale=LossScale(world.device) if config.precision == "fp16" else None,
        )  # fmt: skip
        self.exchange = exchange_of(
            config.gradients, self.optimizer.spans.values(), self.optimizer.grad.numel(),
            rank=world.rank, ranks=world.size, device=world.device,
        )  # fmt: skip
        self.clock = StepClock(world.device)
        self.result = TrainResult(out=out)
        self.stream = BatchStream(loader)
        self._provenance = provenance or {}
        self._writer = CheckpointWriter(out / CHECKPOINTS, config.keep_checkpoints)
        self._saved = -1  # the step of the last checkpoint
        self._passes = Passes(model, loss, self.optimizer, config, world.device, masks)
        self._telemetry = Telemetry(one_pass=config.accumulate == 1)
        self._unsynced = False  # `optimizer.grad` is this rank's, not averaged yet
        self._skipped_in_a_row = 0
        self._asked = ""  # name of the signal that this rank got
        self._stop = ""  # set on all ranks after the same step

    def resume(self) -> int:
        """Continues from the newest complete checkpoint, if there is one; returns the next step.

        Raises:
            TrainerError: it was written with another seed, or other steps.
        """
        world = self.world
        newest = newest_checkpoint(self.out / CHECKPOINTS) if world.is_first else None
        checkpoint: Checkpoint | None = world.share(newest)
        if checkpoint is None:
            return 0
        if world.is_first:  # the others get the buffers by broadcast
            restore(checkpoint, self.optimizer)
        self._restore_state(checkpoint)
        before = checkpoint.state.get(RESIDUALS, {})
        if any(before.get("lengths", ())):
            saved = checkpoint.tensors(RESIDUALS) if world.is_first else {}
            self.exchange.restore(before, world.share(saved))
        return checkpoint.step

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        """Restores a checkpoint's state except its tensors."""
        state, result = checkpoint.state, self.result
        if state["seed"] != self.config.seed:
            raise TrainerError(
                f"the checkpoint was written with seed {state['seed']}, this run has "
                f"{self.config.seed}; it would not be the same run",
                path=str(checkpoint.path),
            )
        before = state["loader"].get("global_batch_size")
        now = self.loader.state_dict().get("global_batch_size")
        if before != now:
            raise TrainerError(
                f"its steps took {before} samples, this run's would take {now} (accumulate x ranks "
                "/ axial x loader.batch_size): with other ranks change accumulate, too",
                path=str(checkpoint.path),
            )
        self.loader.load_state_dict(state["loader"])
        self.stream.epochs = state["epoch"]
        result.first_step = result.step = checkpoint.step
        result.skipped = list(state["skipped"])
        result.overflows = list(state.get("overflows", ()))
        result.checkpoint = checkpoint.path

    def _save(self) -> None:
        """Writes a checkpoint of the last step, unless there is one; all ranks call it."""
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
            **self._provenance,
        }
        result.checkpoint = self._writer.save(self.optimizer, result.step, state, residuals)

    def run(self) -> TrainResult:
        """Trains up to `config.steps`, or until SIGTERM or SIGINT; then saves a checkpoint."""
        scale = self.optimizer.scale
        scalars = [self.optimizer.updates] + ([] if scale is None else [scale.state])
        for buffer in (*self.optimizer.state().values(), *scalars):
            self.world.broadcast(buffer)
        self.model.train()
        began, first = time.perf_counter(), self.result.step
        with note_signals(lambda name: setattr(self, "_asked", name)), ExitStack() as at_last:
            at_last.callback(faulthandler.cancel_dump_traceback_later)
            for step in range(self.result.step, self.config.steps):
                if step == first:
                    with watch_gradients(self.model) as untouched:
                        self.step(step)
                    self._tell_untouched(untouched)
                else:
                    self.step(step)
                if self._stop:
                    break
        self._finish()
        self.result.seconds = time.perf_counter() - began
        return self.result

    def _tell_untouched(self, names: set[str]) -> None:
        if names:
            self.result.untouched = sorted(names)
            _LOG.warning(
                "%d parameters get no gradient from this loss and stay as they are, %s first; "
                "evofeed.trainer.run.gradients.find_untouched says which loss terms reach them",
                len(names),
                min(names),
            )

    def step(self, step: int) -> None:
        """Runs step number `step`, from 0, without waiting for the device."""
        config, clock = self.config, self.clock
        clock.begin(step, "profiling")
        if config.hang_seconds:  # a C thread watches, which needs no GIL
            faulthandler.dump_traceback_later(config.hang_seconds, file=2, exit=True)
        if self.watch:
            self.watch(step)
        clock.part("optimizer")
        self.optimizer.zero_grad()
        numbers: Tensor | None = None
        samples: list[Names] = []
        for micro in range(config.accumulate):
            clock.part("data_wait")
            batch = next(self.stream)
            samples.append(sample_names(self.loader))
            if not self.batch_like:
                self.batch_like = {k: v.to("meta") for k, v in batch.items()}
                clock.part("forward")
                self._passes.compile_ahead(batch)
            if micro == 0 and self.log:
                self.log.values(step, epoch=self.stream.epoch, first=self.stream.first)
            torch.manual_seed(self._sample_seed(step, micro))
            part = self._backward(batch)
            numbers = part if numbers is None else numbers + part
        assert numbers is not None  # accumulate >= 1
        clock.part("communication")
        self.optimizer.gather(config.accumulate)
        self._unsynced = True
        (self._after_backward or Loop.sync_grad)(self)
        if self._unsynced:
            raise TrainerError(
                f"step {step}: after_backward returned without sync_grad(), so every rank would "
                "move its weights by its own gradient: call loop.sync_grad() in it"
            )
        self.world.mean(numbers.div_(config.accumulate))
        clock.part("optimizer")
        norm = self.optimizer.step(step)
        clock.part("other")
        self._read()
        if self.world.size == 1 and self._asked:
            self._stop = self._asked
        scale = self.optimizer.scale
        least = torch.ones_like(norm) if scale is None else scale.is_least
        trailer = torch.stack([norm.double(), least.double()])
        self._telemetry.send(step, torch.cat([numbers, trailer]), samples)
        self.result.step = step + 1
        self._every(step + 1)
        self._flush()

    def sync_grad(self) -> None:
        """Averages this step's gradient, `optimizer.grad`, over all ranks; once a step.

        Raises:
            TrainerError: there is no gradient that was not averaged yet.
        """
        if not self._unsynced:
            raise TrainerError(
                "sync_grad() was called without a new gradient, twice in a step or outside of one: "
                "call it once in after_backward"
            )
        self._unsynced = False
        self.exchange.mean(self.optimizer.grad, self.result.step)

    def _backward(self, batch: dict[str, Tensor]) -> Tensor:
        """Runs forward and backward of one batch; returns its numbers, on the device."""
        self.clock.part("forward")
        numbers = self._passes.gradients(batch, lambda: self.clock.part("backward"))
        if self.config.optim.clip == "per_example":  # of the sample, not of a rank's part
            self.world.mean_of_sample(self.optimizer.grad)
        self.optimizer.end_sample()
        return announced(numbers, stop=bool(self._asked), recycles=num_recycles(batch))

    def _read(self) -> None:
        """Reads the numbers of the previous step, the same on all ranks."""
        numbers = self._telemetry.take(self._passes.terms)
        if numbers is None:
            return
        if numbers.stop:
            self._stop = self._asked or "a signal to another rank"
        if numbers.overflowed:
            self.result.overflows.append(numbers.step)
        elif numbers.finite:
            self._skipped_in_a_row = 0
        else:
            self._skip(numbers)
        self.result.losses.append(numbers.loss)
        if self.log:
            rate = learning_rate(numbers.step, self.config.optim)
            self.log.values(
                numbers.step, loss=numbers.loss, terms=numbers.terms, norm=numbers.norm, rate=rate,
                recycles=numbers.recycles, finite=numbers.finite,
            )  # fmt: skip

    def _skip(self, numbers: StepNumbers) -> None:
        """Counts a step without a finite gradient and logs the names of its samples."""
        self.result.skipped.append(numbers.step)
        self._skipped_in_a_row += 1
        ranks = self.world.collect([name for ask in numbers.samples for name in ask()])
        names = [name for rank in ranks for name in rank]
        if self.log:
            self.log.values(numbers.step, samples=names)
        if self._skipped_in_a_row >= self.config.max_skipped:
            raise TrainerError(
                f"{self._skipped_in_a_row} steps in a row without a finite gradient, the last with "
                f"{', '.join(names)}; lower the learning rate or use precision fp32",
                path=str(self.out / STEPS),
            )

    def _every(self, done: int) -> None:
        config = self.config
        due = config.validate_every and (done % config.validate_every == 0 or done == config.steps)
        if self.validate and due:
            self.clock.part("validation")
            self._validate(done - 1)
        if config.checkpoint_every and done % config.checkpoint_every == 0:
            self.clock.part("checkpoint")
            self._read()  # its outcome belongs into the checkpoint
            self._save()
        self.clock.part("other")

    def _validate(self, step: int) -> None:
        assert self.validate
        self.optimizer.swap_ema()
        self.model.eval()
        with torch.compiler.set_stance("force_eager"):  # chains of any length
            metrics = self.validate()
        self.model.train()
        self.optimizer.swap_ema()
        if self.log:
            self.log.values(step, metrics=metrics)

    def _finish(self) -> None:
        self._read()
        self.clock.part("checkpoint")
        self._save()
        self._writer.wait()
        self.clock.end()
        self._flush()
        self.stream.close()
        self.result.stopped_by = self._stop
        self.world.barrier()

    def _flush(self) -> None:
        for step, times in self.clock.finished():
            for part, seconds in times.items():
                self.result.parts[part] = self.result.parts.get(part, 0.0) + seconds
            if self.log:
                self.log.times(step, times)

    def _sample_seed(self, step: int, micro: int) -> int:
        """Seed of one sample's dropout; the same however a batch is spread over ranks."""
        number = (step * self.config.accumulate + micro) * self.world.readers + self.world.reader
        return (self.config.seed * 1_000_003 + number) % 2**63

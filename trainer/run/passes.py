"""Forward and backward of one batch: eagerly, or replayed from CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels import OnePass
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.graphs import Recycling, Replay, State
from evofeed.trainer.run.precision import autocast
from evofeed.trainer.run.telemetry import measured

LossFunction = Callable[[Mapping[str, Any], dict[str, Tensor]], tuple[Tensor, Mapping[str, Tensor]]]
"""Maps outputs and batch to a scalar and its named terms."""


class Passes:
    """A model and its loss on batches; gradients are added to the optimizer's.

    Args:
        masks: dropout masks of a size that a pass draws at once: see `OnePass`.

    Attributes:
        terms: names of the loss's terms, in order, once a batch was run.
    """

    def __init__(
        self, model: nn.Module, loss: LossFunction, optimizer: FlatOptimizer, config: TrainConfig,
        device: torch.device, masks: int,
    ) -> None:  # fmt: skip
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.terms: list[str] = []
        self._config, self._device, self._one_pass = config, device, OnePass(masks)
        self._replay = self._recorder() if config.cuda_graphs and device.type == "cuda" else None

    def compile_ahead(self, batch: dict[str, Tensor]) -> None:
        """Compiles the kernels of a step to be recorded at once, instead of one by one."""
        if self._replay and self._config.kernels == "fused" and self._config.axial == 1:
            self._replay.compile_ahead(batch, self._device)
            self.optimizer.zero_grad()

    def gradients(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        """Loss and terms as `measured` gives them; `between` is called before the backward pass."""
        if self._replay:
            return self._replay(batch, between)
        loss, numbers = self._forward(batch)
        between()
        self.optimizer.backward(loss)
        return numbers

    def _forward(
        self, batch: dict[str, Tensor], previous: State | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss of a batch, and loss and terms as one detached tensor."""
        if isinstance(self.model, Recycling):
            batch, previous = self._recycled(self.model, batch, previous)
        with autocast(self._config.precision, self._device.type), self._one_pass:
            outputs = self.model(batch) if previous is None else self.model(batch, previous)
        loss, terms = self.loss(outputs, batch)
        self.terms = sorted(terms)
        return loss, measured(loss, terms)

    def _recycled(
        self, model: Recycling, batch: dict[str, Tensor], previous: State | None
    ) -> tuple[dict[str, Tensor], State | None]:
        """A batch's last recycle, and the result of those before: separate passes, as recorded."""
        recycles = min((len(batch[name]) for name in model.per_recycle & batch.keys()), default=1)
        for cycle in range(recycles - 1):
            previous = self._pass(batch, previous, cycle)
        names = model.per_recycle if recycles > 1 else ()
        return {n: value[-1:] if n in names else value for n, value in batch.items()}, previous

    def _pass(self, batch: dict[str, Tensor], previous: State | None, cycle: int = 0) -> State:
        with autocast(self._config.precision, self._device.type), self._one_pass:
            return self.model.recycle(batch, previous, cycle)  # type: ignore[operator, no-any-return]

    def _recorder(self) -> Replay:
        """Replay of steps as CUDA graphs: of single passes if the model has them, else of all."""
        backward = self.optimizer.backward
        if not isinstance(self.model, Recycling):
            return Replay(self._forward, backward=backward)
        return Replay(self._forward, self._pass, self.model.per_recycle, backward)

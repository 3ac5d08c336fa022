"""Asynchronous transfer of a step's numbers from the device to the host, and signal handling.

A step leaves one small tensor on the device: a flag to stop, the number of
recycles, loss, terms and gradient norm, averaged over all ranks. It is copied
while the next step is being launched and read after that, so no step waits; and
all ranks read the same numbers after the same step, so they act the same.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.base.errors import TrainerError

Names = Callable[[], list[str]]
"""Returns the names of a batch's samples on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """The outcome of a step, averaged over all ranks and passes.

    Attributes:
        stop: True if a rank got a signal to stop before it.
        recycles: passes through the model.
        norm: gradient norm before clipping.
        least: True if the loss scale is at its minimum, or there is none.
        samples: names of this rank's samples, one function per pass.
    """

    step: int
    stop: bool
    recycles: float
    loss: float
    terms: dict[str, float]
    norm: float
    least: bool
    samples: tuple[Names, ...]

    @property
    def overflowed(self) -> bool:
        """True if a smaller loss scale would probably have made the gradient finite."""
        return not self.finite and not self.least and math.isfinite(self.loss)

    @property
    def finite(self) -> bool:
        """True if the step changed the weights."""
        return math.isfinite(self.norm)


def measured(loss: Tensor, terms: Mapping[str, Tensor]) -> Tensor:
    """Loss and terms, by name, as one detached float64 tensor."""
    values = [loss.detach(), *(terms[name].detach() for name in sorted(terms))]
    return torch.stack([value.double() for value in values])


def announced(numbers: Tensor, *, stop: bool, recycles: int) -> Tensor:
    """The output of `measured`, preceded by the numbers of the host."""
    of_host = torch.tensor([stop, recycles, recycles**2], dtype=torch.float64)
    return torch.cat([of_host.to(numbers.device, non_blocking=True), numbers])


class Telemetry:
    """One step's numbers in transit: `send` starts the copy, `take` reads it a step later."""

    def __init__(self, *, one_pass: bool) -> None:
        self._one_pass = one_pass  # else recycles may differ within a step
        self._in_transit: tuple[int, Tensor, torch.cuda.Event | None, Sequence[Names]] | None = None

    def send(self, step: int, numbers: Tensor, samples: Sequence[Names]) -> None:
        """Starts the copy; `numbers` are those of `announced`, then norm and `least`."""
        event = None
        if numbers.device.type == "cuda":
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            pinned.copy_(numbers, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            numbers = pinned
        self._in_transit = step, numbers, event, samples

    def take(self, names: Sequence[str]) -> StepNumbers | None:
        """The numbers sent last, or None if they were taken; `names` are those of the terms.

        Raises:
            TrainerError: the ranks ran different numbers of recycles.
        """
        if self._in_transit is None:
            return None
        step, numbers, event, samples = self._in_transit
        self._in_transit = None
        if event:
            event.synchronize()
        stop, recycles, squares, loss, *terms, norm, least = numbers.tolist()
        if self._one_pass and abs(squares - recycles**2) > 1e-6:
            raise TrainerError(
                f"step {step}: the ranks ran different numbers of recycles, {recycles} on average; "
                "the loader must draw one number per step"
            )
        return StepNumbers(
            step=step,
            stop=bool(stop),
            recycles=recycles,
            loss=loss,
            terms=dict(zip(names, terms, strict=True)),
            norm=norm,
            least=bool(least),
            samples=tuple(samples),
        )


@contextmanager
def note_signals(on_signal: Callable[[str], None], together: float = 2.0) -> Iterator[None]:
    """A context that passes names of SIGTERM and SIGINT to `on_signal`; a second signal kills.

    Signals within `together` seconds count as one: `timeout` and job schedulers signal a process
    and then its group.

    Outside the main thread signals cannot be caught, and the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    first = math.inf

    def note(number: int, frame: Any) -> None:
        nonlocal first
        now = time.monotonic()
        if now - first > together:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        first = min(first, now)
        on_signal(signal.Signals(number).name)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

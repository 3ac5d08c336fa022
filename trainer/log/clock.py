"""Times of a step's parts, measured on the device.

Every instant belongs to exactly one part: the beginning of a part ends the one
before. On a GPU the boundaries are CUDA events on the training stream, so a data
wait counts only if the GPU was idle for it, and only `end` makes the CPU wait
for the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import torch

from evofeed.trainer.log.runlog import PARTS


class StepClock:
    """Records when parts begin; returns the seconds of finished steps."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.marker: Callable[[str], None] | None = None  # the profiler's, called at each boundary
        self._marks: deque[tuple[int, str, torch.cuda.Event | float]] = deque()
        self._step = -1
        self._open: dict[int, dict[str, float]] = {}  # seconds by part, of unfinished steps

    def begin(self, step: int, part: str = "data_wait") -> None:
        """Begins a step, with this part."""
        self._step = step
        self._open[step] = {}
        self.part(part)

    def part(self, name: str) -> None:
        """Begins the part `name` of the step."""
        if name not in PARTS:
            raise ValueError(f"{name!r} is not a part of a step; there are {', '.join(PARTS)}")
        self._marks.append((self._step, name, self._now()))
        if self.marker:
            self.marker(name)

    def end(self) -> None:
        """Ends the last step; waits for the device."""
        self._marks.append((self._step + 1, "other", self._now()))
        if self.on_gpu:
            torch.cuda.synchronize()

    def finished(self) -> list[tuple[int, dict[str, float]]]:
        """Steps finished on the device since the last call, oldest first, with seconds by part."""
        while len(self._marks) > 1 and self._done(self._marks[1][2]):
            step, part, began = self._marks.popleft()
            times = self._open[step]
            times[part] = times.get(part, 0.0) + _between(began, self._marks[0][2])
        current = self._marks[0][0] if self._marks else 0
        done = sorted(step for step in self._open if step < current)
        return [(step, self._open.pop(step)) for step in done]

    def _now(self) -> torch.cuda.Event | float:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _done(self, moment: torch.cuda.Event | float) -> bool:
        return isinstance(moment, float) or bool(moment.query())  # type: ignore[no-untyped-call]


def _between(began: torch.cuda.Event | float, ended: torch.cuda.Event | float) -> float:
    if isinstance(began, float) and isinstance(ended, float):
        return ended - began
    assert isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event)
    return float(began.elapsed_time(ended)) / 1e3

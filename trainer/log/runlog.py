"""Log of a run: one JSON line per step, optional boards, a progress bar.

`steps.jsonl` is the source of every report. Only the first rank writes.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO

from evofeed.base.errors import TrainerError
from evofeed.base.files import advice, write_atomic
from evofeed.base.run_files import STEPS, parse_steps
from evofeed.trainer.log.boards import Board

PARTS = (
    "data_wait", "forward", "backward", "communication", "optimizer", "validation", "checkpoint",
    "profiling", "other",
)  # fmt: skip
"""The parts of a step, in the order in which a report lists them."""


class RunLog:
    """Collects the values of each step and writes its line once its times are known.

    A step's values are known one step later, and its times later still, because the loop does
    not wait for the device.

    `boards` get the numbers too and are closed with the log; `samples` are those of a step, over
    all ranks, for the throughput.
    """

    def __init__(
        self, folder: Path, *, steps: int, show: bool = False, boards: Sequence[Board] = (),
        samples: int = 1,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._file: TextIO | None = None
        self._values: dict[int, dict[str, Any]] = {}  # of steps without times yet
        self._bar = _bar() if show else None
        self._task = self._bar.add_task("training", total=steps, text="") if self._bar else None
        self._boards, self._samples = boards, samples
        self._losses: deque[float] = deque(maxlen=max(1, steps // 10))

    def __enter__(self) -> RunLog:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / STEPS).open("a", buffering=1)
        if self._bar:
            if not self._bar.console.is_terminal:  # the bar is drawn once, at the end
                hint = f"training: `evofeed report {self._folder}` says at any time how far it is"
                self._bar.console.print(hint, markup=False, soft_wrap=True)
            self._bar.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._bar:
            self._bar.stop()
        for board in self._boards:
            board.close()
        if self._file:
            with suppress(OSError) if error else nullcontext():  # a full disk was reported already
                self._file.close()

    def values(self, step: int, **values: Any) -> None:
        """Adds values of a step: loss, terms, norm, epoch, metrics."""
        self._values.setdefault(step, {}).update(values)
        if math.isfinite(values.get("loss", math.nan)):
            self._losses.append(values["loss"])
        if self._bar and self._task is not None and self._losses and "loss" in values:
            text = f"loss {sum(self._losses) / len(self._losses):.4g}"  # as in the report
            self._bar.update(self._task, completed=step + 1, text=text)

    def times(self, step: int, seconds: Mapping[str, float]) -> None:
        """Writes the line of a step, given its seconds by part, which are known last."""
        line = {
            "step": step,
            **self._values.pop(step, {}),
            "seconds": {part: round(value, 7) for part, value in seconds.items()},
        }
        if self._file is None:
            raise ValueError("the log is not open: use it in a with statement")
        try:
            self._file.write(json.dumps(without_nan(line)) + "\n")
        except OSError as error:
            raise TrainerError(
                f"cannot write it ({error.strerror}); {advice(error)} and continue with --resume",
                path=str(self._folder / STEPS),
            ) from error
        for board in self._boards:
            board.log(_scalars(line, self._samples), step)


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run, sorted by step; see `parse_steps`."""
    path = folder / STEPS
    return parse_steps(path.read_text()) if path.is_file() else []


def drop_steps(folder: Path, first: int) -> None:
    """Removes the lines from step `first` on: a resumed run repeats those steps."""
    lines = [line for line in read_steps(folder) if line["step"] < first]
    write_atomic(folder / STEPS, "".join(json.dumps(line) + "\n" for line in lines))


def without_nan(value: Any) -> Any:
    """The value with None for numbers that are not finite, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _scalars(line: dict[str, Any], samples: int) -> dict[str, float]:
    seconds = line["seconds"]
    total = max(sum(seconds.values()), 1e-9)
    scalars = {
        "time/step": total,
        "time/data_wait_share": seconds["data_wait"] / total,
        "train/samples_per_second": samples / total,
    }
    for name in ("loss", "norm", "rate"):
        if isinstance(line.get(name), float):
            scalars[f"train/{name}"] = line[name]
    for group in ("terms", "metrics"):
        scalars |= {f"{group}/{k}": v for k, v in line.get(group, {}).items() if v is not None}
    return scalars


def _bar() -> Any:
    """A progress bar followed by a text."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[text]}"),
    )  # fmt: skip

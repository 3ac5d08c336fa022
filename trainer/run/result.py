"""Result of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class TrainResult:
    """The outcome of a run.

    Attributes:
        first_step: its first step: 0, or the step at which it resumed.
        losses: mean loss of every step since `first_step`.
        skipped: steps without a finite gradient, which changed nothing.
        overflows: with `precision: fp16`, steps that changed nothing because the loss scale was
            too large.
        seconds: wall time from the first wait for data to the end.
        stopped_by: name of the signal that ended it early, or empty.
        untouched: parameters that no gradient reached in the first step.
        parts: seconds of every part of a step, summed over all steps, on this rank.
    """

    out: Path
    first_step: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    overflows: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stopped_by: str = ""
    checkpoint: Path | None = None
    untouched: list[str] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)

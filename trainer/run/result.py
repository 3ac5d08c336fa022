"""Result of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class TrainResult:
    """What a run did.

    Attributes:
        first_step: step it began at: 0, or where it resumed.
        losses: mean loss of every step done now.
        skipped: steps without a finite gradient, which changed nothing.
        overflows: of `precision: fp16`, steps that changed nothing because the loss was scaled
            too much.
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

"""The parts of a step and their seconds, as a run's log and its report know them."""

from __future__ import annotations

from dataclasses import dataclass, field

PARTS = (
    "data_wait",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "validation",
    "checkpoint",
    "profiling",
    "other",
)
"""The parts of a step, in the order in which a report lists them."""


@dataclass(slots=True, kw_only=True)
class StepTimes:
    """Seconds of one step by part."""

    step: int
    seconds: dict[str, float] = field(default_factory=dict)

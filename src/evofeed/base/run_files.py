"""Files of a training run's folder, for code that reads them without the trainer."""

from __future__ import annotations

from typing import Any, Final

from evofeed.base.files import parse_json

RUN: Final = "run.json"
STEPS: Final = "steps.jsonl"
STRUCTURE: Final = "validated.npz"


def parse_steps(text: str) -> list[dict[str, Any]]:
    """The lines of `steps.jsonl` in order of steps; the later one of a repeated step.

    A line truncated by a crash is left out: its step was repeated after the resume.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            entry = parse_json(line)
            steps[int(entry["step"])] = entry
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    return [steps[step] for step in sorted(steps)]

"""What rows of docs/measured.md are made of: files of results/, and their age."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"
EARLIER = "recorded earlier"  # the peer's part: another run on the same kind of card

Row = tuple[str, str, str, str]
"""What, evofeed, beside it, the files of results/ it comes from."""


@cache
def result(name: str) -> Any:
    """A file of results/."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def age(date: str) -> str:
    """The day of a run with older kernels than the newest recorded step has."""
    newest = result("train_step_h200_recorded")["machine"]["date"]
    return f", kernels of {date[:10]}" if date[:10] < newest else ""

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
    newest = result("ablation_h200")["date"]
    return f", kernels of {date[:10]}" if date[:10] < newest else ""


def recorded_step(preset: str) -> Any:
    """The newest recorded step with every kernel: `median_ms` and `peak_gb` (GiB)."""
    (row,) = (
        row
        for row in result("ablation_h200")["rows"]
        if (row["candidate"], row["part"]) == ("full", preset)
    )
    return row


PACKAGES = ("torch", "triton", "numpy", "pyarrow")
"""Packages whose versions docs/measured.md prints beside a figure."""


def versions(name: str) -> str:
    """`torch 2.11.0+cu130` and the like: each package of `PACKAGES` that a result names."""
    found: dict[str, set[str]] = {package: set() for package in PACKAGES}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                if key in found and isinstance(entry, str) and entry[:1].isdigit():
                    found[key].add(entry)
                walk(entry)
        elif isinstance(value, list):
            for entry in value:
                walk(entry)

    walk(result(name))
    return ", ".join(f"{key} {'/'.join(sorted(seen))}" for key, seen in found.items() if seen)

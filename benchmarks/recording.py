"""What a result says of its run, what times are summed up to, and how a result is written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def about(*packages: str, device: str = "cpu") -> dict[str, Any]:
    """The command, the machine or card, versions, and the date.

    Args:
        packages: whose versions the result depends on, as installed.
        device: `cuda` if the card is to be named.
    """
    script = Path(sys.argv[0])
    shown = ["PATH" if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    found: dict[str, Any] = {
        "command": " ".join(["python", f"{script.parent.name}/{script.name}", *shown]),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    if device == "cuda":
        import torch

        found["card"] = torch.cuda.get_device_name()
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return found


def quartiles(values: Sequence[float], digits: int = 1) -> list[float]:
    """Median, first and third quartile."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else 3 * [*values]
    return [round(value, digits) for value in (middle, low, high)]


def save(path: Path | str | None, result: Any) -> None:
    """Write a result as JSON; without a path print it."""
    text = json.dumps(result, indent=1) + "\n"
    if path is None:
        print(text, end="")
    else:
        Path(path).write_text(text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]

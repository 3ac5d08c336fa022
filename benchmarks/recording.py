"""What a result says of its run, what times are summed up to, and how a result is written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def about(*packages: str, device: str = "cpu") -> dict[str, Any]:
    """The command, the machine or card, versions, and the date.

    Args:
        packages: whose versions the result depends on, as installed.
        device: `cuda` if the card is to be named.
    """
    found: dict[str, Any] = {"command": command()}
    if device == "cuda":
        import torch

        found["card"] = torch.cuda.get_device_name()
    else:
        found["machine"] = {"cpu": cpu(), "cores": os.cpu_count(), "load": os.getloadavg()}
    found["python"] = platform.python_version()
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return found


def command() -> str:
    """How this script was called, but for where its result goes and for folders of this machine."""
    words, root = sys.argv[1:], Path(__file__).resolve().parent.parent
    if "--out" in words:
        at = words.index("--out")
        words = words[:at] + words[at + 2 :]
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(root) if script.is_relative_to(root) else script.name
    return " ".join(["python", str(name), *("PATH" if Path(w).is_absolute() else w for w in words)])


def cpu() -> str:
    """The processor's name."""
    listed = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", listed.read_text()) if listed.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def quartiles(values: Sequence[float], digits: int = 1) -> list[float]:
    """Median, first and third quartile."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else 3 * [*values]
    return [round(value, digits) for value in (middle, low, high)]


def save(path: Path | str | None, result: Any) -> None:
    """Write a result as JSON, whole or not at all; without a path print it."""
    text = json.dumps(result, indent=1) + "\n"
    if path is None:
        print(text, end="")
        return
    part = Path(f"{path}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(text)
    part.replace(path)

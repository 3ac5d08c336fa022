"""Processes that this one has started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evofeed.loader import FeatureLoader


def python(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """How a Python of its own ended."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


def reader_pid(loader: FeatureLoader) -> int | None:
    """The child of this process that reads; None between two lives."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            command = stat.with_name("cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and "evofeed.loader.reader_process" in command:
            return int(stat.parent.name)
    return None


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found

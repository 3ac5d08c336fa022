"""Where half uploads are, and how long what nobody writes to any more stays there."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

STALE: Final = 3600.0
"""Seconds after the last byte at which an upload counts as dead."""


def folder_of(home: Path) -> Path:
    """Where bodies are while they come in."""
    return home / "uploads"


def collect_stale(home: Path) -> int:
    """Remove what killed processes left behind; how many files."""
    gone = 0
    for path in folder_of(home).glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - STALE:
                path.unlink()
                gone += 1
    return gone

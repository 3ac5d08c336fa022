"""Named moments of a write at which a process may die: tests kill it at every one.

`reached` costs one comparison. What a process leaves behind that died at any of these
points must be invisible to readers, and what it meant to publish must be publishable again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PUT: Final = (
    "file not begun",
    "file opened aside",
    "file half written",
    "file written, not synced",
    "file synced, not renamed",
    "file renamed, folder not synced",
    "file in place",
)
"""Of each file of a snapshot: parts, shards, index, manifest and ref."""
COMMIT: Final = (
    "shards written, nothing names them",
    "index made, not written",
    "index written, no manifest",
    "manifest written, ref not moved",
    "ref locked, not compared",
    "ref compared, not replaced",
    "ref moved",
)
POINTS: Final = (*PUT, *COMMIT)

hook: Callable[[str], None] | None = None
"""Called at each point as it is reached; None outside tests."""


def reached(point: str) -> None:
    """This process is at that point."""
    if hook is not None:
        hook(point)

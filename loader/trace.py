"""What happened when, as a Chrome trace: open it in chrome://tracing or Perfetto."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any, Final

_KEEP: Final = 100_000
"""Latest events kept: about 10 MB, some hours of training."""


class Trace:
    """Spans of time on named rows. Adding one costs about a microsecond."""

    def __init__(self) -> None:
        self._events: deque[tuple[str, str, float, float, dict[str, Any]]] = deque(maxlen=_KEEP)

    def add(self, row: str, name: str, begun: float, ended: float, **details: Any) -> None:
        """One span; times are `time.perf_counter()`.

        Args:
            row: who: `consumer`, `feeder`, `reader`.
            name: what.
            begun: when it began.
            ended: when it ended.
            details: shown when the span is clicked.
        """
        self._events.append((row, name, begun, ended, details))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write everything kept as one JSON file."""
        rows = {"consumer": 0, "feeder": 1, "reader": 2}
        events: list[dict[str, Any]] = [
            {
                "ph": "M",
                "pid": os.getpid(),
                "tid": tid,
                "name": "thread_name",
                "args": {"name": row},
            }
            for row, tid in rows.items()
        ]
        for row, name, begun, ended, details in list(self._events):
            events.append(
                {
                    "ph": "X",
                    "pid": os.getpid(),
                    "tid": rows[row],
                    "name": name,
                    "ts": begun * 1e6,
                    "dur": (ended - begun) * 1e6,
                    "args": details,
                }
            )
        Path(path).write_text(json.dumps({"traceEvents": events}))

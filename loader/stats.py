"""Statistics of the loader's work and waits: `loader.stats()`."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.loader.batch_maker import ReadyBatch
from evofeed.loader.reader_pool import Readers

_MAX_DURATIONS: Final = 4096
"""Latest durations stored by a timer."""
_EVENTS: Final = 100_000
"""Latest events stored by a trace: about 10 MB, some hours of training."""


class Timer:
    """Durations of one kind: their count, sum, and percentiles of the latest."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._latest: deque[float] = deque(maxlen=_MAX_DURATIONS)

    def add(self, seconds: float) -> None:
        """Adds a duration."""
        self.count += 1
        self.total += seconds
        self._latest.append(seconds)

    def summary(self) -> dict[str, int | float]:
        """Milliseconds: mean of all; median, 99th percentile and maximum of the latest."""
        latest = np.array(self._latest or [0.0]) * 1e3
        return {
            "count": self.count,
            "mean_ms": self.total / max(self.count, 1) * 1e3,
            "p50_ms": float(np.percentile(latest, 50)),
            "p99_ms": float(np.percentile(latest, 99)),
            "max_ms": float(latest.max()),
        }


class Trace:
    """Timeline of the loader as a Chrome trace, for chrome://tracing or Perfetto."""

    def __init__(self) -> None:
        self._events: deque[tuple[str, str, float, float, dict[str, Any]]] = deque(maxlen=_EVENTS)

    def add(self, row: str, name: str, begun: float, ended: float, **details: Any) -> None:
        """Adds a span; times are `time.perf_counter()`.

        The row is `consumer`, `feeder` or `reader`; a viewer shows details of a selected span.
        """
        self._events.append((row, name, begun, ended, details))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the stored events as one JSON file."""
        rows = {"consumer": 0, "feeder": 1, "reader": 2}
        pid = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": row}}
            for row, tid in rows.items()
        ]
        for row, name, begun, ended, details in list(self._events):
            span = {"ts": begun * 1e6, "dur": (ended - begun) * 1e6}
            events.append(
                {"ph": "X", "pid": pid, "tid": rows[row], "name": name, **span, "args": details}
            )
        Path(path).write_text(json.dumps({"traceEvents": events}))


class Stats:
    """Counters of one loader, updated by its feeder thread and its consumer."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.trace = Trace()
        self.wait = Timer()
        self.read = Timer()
        self.host = Timer()
        self.device = Timer()
        self.samples = 0
        self.recycles = 0
        self.nbytes = 0
        self.page_locked = False
        self.substituted = 0
        self.out_of_order = 0
        self.respawns = 0
        self.retries = 0
        self.reader_cpu_seconds = 0.0
        self._readers: Readers | None = None
        self._before = 0, 0.0
        self.bad_chains: list[str] = []
        self.causes: dict[str, float] = {}
        self._pending: deque[tuple[Any, Any]] = deque()

    def was_read(self, chain_id: str, requested: float, seconds: float) -> None:
        """Records a chain in its slot: reading took `seconds`, the rest of the time it waited."""
        now = time.perf_counter()
        self.read.add(seconds)
        self.trace.add("reader", "read", requested, now, chain=chain_id, read_ms=seconds * 1e3)

    def batch_made(self, batch: ReadyBatch, samples: int) -> None:
        """Records a batch whose work is queued on the device."""
        now = time.perf_counter()
        details = {"epoch": batch.plan.epoch, "step": batch.plan.step, "bytes": batch.nbytes}
        self.trace.add("feeder", "make", now - batch.host_seconds, now, **details)
        self.samples += samples
        self.recycles += samples * batch.plan.recycles
        self.nbytes += batch.nbytes
        self.host.add(batch.host_seconds)
        if batch.event is None:
            self.device.add(batch.host_seconds)
        elif batch.started is not None:
            self._pending.append((batch.started, batch.event))
        while self._pending and self._pending[0][1].query():  # without synchronizing
            begin, end = self._pending.popleft()
            self.device.add(begin.elapsed_time(end) / 1e3)

    def delivered(self, batch: ReadyBatch, waited: float, cause: str) -> None:
        """Records a batch at the consumer, which waited so long, and the cause."""
        now = time.perf_counter()
        self.wait.add(waited)
        self.causes[cause] = self.causes.get(cause, 0.0) + waited
        position = {"epoch": batch.plan.epoch, "consumed": batch.plan.consumed}
        self.trace.add("consumer", f"wait: {cause}", now - waited, now, **position)

    def follow(self, readers: Readers | None) -> None:
        """Adds up the counters of new readers from now on; None: of no readers."""
        self._update_from_readers()
        self._before = self.respawns, self.reader_cpu_seconds
        self._readers = readers

    def _update_from_readers(self) -> None:
        readers, (respawns, seconds) = self._readers, self._before
        if readers is not None:
            self.respawns = respawns + readers.respawns
            self.reader_cpu_seconds = seconds + readers.cpu_seconds()

    def summary(self) -> dict[str, Any]:
        """All counters, JSON-ready. Times are in milliseconds or seconds, as the names say."""
        self._update_from_readers()
        return {
            "pid": os.getpid(),
            "seconds": time.perf_counter() - self.begun,
            "samples": self.samples,
            "recycles": self.recycles,
            "data_wait": self.wait.summary(),
            "wait_seconds_by_cause": dict(self.causes),
            "read": self.read.summary(),
            "make_host": self.host.summary(),
            "make_device": self.device.summary(),
            "page_locked": self.page_locked,
            "bytes_to_device": self.nbytes,
            "bytes_per_sample": self.nbytes / max(self.samples, 1),
            "reader_cpu_seconds": self.reader_cpu_seconds,
            "reader_respawns": self.respawns,
            "retried_reads": self.retries,
            "substituted_samples": self.substituted,
            "batches_out_of_order": self.out_of_order,
            "bad_chains": list(self.bad_chains),
        }

"""Ends a run in which nothing moves, and writes down what every rank was doing.

A collective that never returns, a driver that hangs, a storage that neither answers nor fails:
from outside they all look like a GPU at 0 %. Each rank watches its own steps from a thread of
its own; ranks that wait for each other stop moving together, so all of them write.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evofeed.base.run_files import HANGS

_LOG = logging.getLogger(__name__)
_HISTORY = 101  # steps whose median counts


class Watchdog:
    """Watches that `beat` keeps being called while the block under `with` runs.

    After `factor` times the median step, and never before `least` seconds, without a step, it
    writes `hangs/step_<number>.rank<rank>.txt` (the stacks of all threads) and `.json` (what
    `facts` returns), asks the run to stop by SIGTERM and, if there is still no step `grace`
    seconds later, ends the process: a thread that is stuck in the driver can be asked nothing.

    Args:
        factor: times the median step; 0 turns the watchdog off.
        least: seconds that no step is too long for: compilation, validation, a slow storage.
        grace: seconds between the request to stop and the end of the process.
        facts: what else to write down, JSON-ready; called from the watchdog's thread.
    """

    def __init__(
        self,
        out: Path,
        rank: int,
        *,
        factor: float,
        least: float,
        grace: float = 60.0,
        facts: Callable[[], dict[str, Any]] = dict,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self.out, self.rank, self.facts = out, rank, facts
        self.factor, self.least, self.grace, self._end = factor, least, grace, end
        self._step, self._last = -1, time.monotonic()
        self._seconds: deque[float] = deque(maxlen=_HISTORY)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self, step: int) -> None:
        """Step number `step` begins."""
        now = time.monotonic()
        if self._step >= 0:
            self._seconds.append(now - self._last)
        self._step, self._last = step, now

    @property
    def limit(self) -> float:
        """Seconds without a step that are too many."""
        return max(self.least, self.factor * statistics.median(self._seconds or [0.0]))

    def __enter__(self) -> Watchdog:
        """Start watching, from now."""
        if self.factor > 0:
            self._last = time.monotonic()
            self._thread = threading.Thread(
                target=self._watch, name="evofeed-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        if self._thread:
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.least / 4)):
            step, since = self._step, time.monotonic() - self._last
            if since < self.limit:
                continue
            self._report(step, since)
            os.kill(os.getpid(), signal.SIGTERM)
            if self._over.wait(self.grace) or self._step != step:
                continue  # it moves again, and stops after this step with a checkpoint
            _LOG.error("rank %d did not stop either; ending the process", self.rank)
            self._end(1)
            return

    def _report(self, step: int, since: float) -> None:
        folder = self.out / HANGS
        folder.mkdir(parents=True, exist_ok=True)
        stacks = folder / f"step_{max(step, 0):08d}.rank{self.rank}.txt"
        with stacks.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        facts = {"step": step, "seconds_without_a_step": since, "limit": self.limit, **self.facts()}
        stacks.with_suffix(".json").write_text(json.dumps(facts, indent=1, default=str))
        _LOG.error(
            "no step for %.0f s (step %d, rank %d): the run stops; %s has the stacks of all threads"
            " and the loader's state, --resume continues from the last checkpoint",
            since, step, self.rank, stacks,
        )  # fmt: skip

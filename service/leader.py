"""Which of a service's workers runs its jobs, sends its webhooks and searches its tickets.

The one that holds a lock on a file in the service's home. The kernel lets go of it when that
worker ends, however it ends, and another one takes it up within the second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

_TICK: Final = 0.5


class Duty(Protocol):
    """What one worker does for all."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """Stop, also if it never began."""


class Leader:
    """Begins the duties once this process holds the lock.

    Args:
        home: folder of the service; processes with the same one share the duties.
        duties: to begin.
    """

    def __init__(self, home: Path, duties: Sequence[Duty]) -> None:
        self._path, self._duties = home / "leader.lock", duties
        self._file: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="evofeed-leader", daemon=True)

    @property
    def leads(self) -> bool:
        """True once this process has the duties."""
        return self._file is not None

    def start(self) -> None:
        """Take the lock now, or wait for it in a thread."""
        if not self._take():
            self._thread.start()

    def close(self) -> None:
        """End the duties, then let others have them."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for duty in self._duties:
            duty.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _wait(self) -> None:
        while not self._stop.wait(_TICK) and not self._take():
            pass

    def _take(self) -> bool:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = file
            for duty in self._duties:
                duty.start()
            return True
        os.close(file)
        return False

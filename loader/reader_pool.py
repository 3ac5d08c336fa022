"""Readers that fill the slots: threads in this process, or one reader process that may die.

Both take `ReadRequest`s and return results in any order. A reader process that
dies or stops its heartbeat is replaced and its pending requests are sent again; they write
the same bytes to the same slots, so no result is lost or returned twice.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Final

import evofeed
from evofeed.base.errors import WorkerDied
from evofeed.loader.arena import Arena, Pulse
from evofeed.loader.read_chain import ReadRequest
from evofeed.loader.reader_process import Result, read_request
from evofeed.store.inner import Storage

SILENCE_SECONDS: Final = 60.0
"""A reader without a heartbeat for this long is considered dead."""
_MAX_DEATHS: Final = 3
"""A chain is not read again after this many readers died while reading it alone."""
_MAX_FAILED_STARTS: Final = 3
"""Readers in a row that may exit by themselves without a result."""
_MAX_KILLED: Final = 100
"""Readers in a row that may be killed without a result."""


class ThreadReaders:
    """Reader threads in this process: for tests, notebooks and small data.

    It has the methods of `ProcessReaders`.
    """

    def __init__(self, storages: Sequence[Storage], arena: Arena, num_threads: int) -> None:
        self.respawns = 0
        self._storages = storages
        self._memory = memoryview(arena.memory)
        self._pool = ThreadPoolExecutor(num_threads, "evofeed-read")
        self._results: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()

    def submit(self, requests: Sequence[ReadRequest]) -> None:
        """Queues requests; returns immediately."""
        for request in requests:
            self._pool.submit(self._work, request)

    def _work(self, request: ReadRequest) -> None:
        try:
            self._results.put(read_request(self._storages, self._memory, request))
        except Exception as error:  # a bug: `poll` raises it instead of waiting forever
            self._results.put(error)

    def poll(self, timeout: float) -> list[Result]:
        """Finished results, after waiting up to `timeout` seconds for the first.

        Raises an exception of a thread.
        """
        results: list[Result] = []
        with contextlib.suppress(queue.Empty):
            item = self._results.get(timeout=timeout)
            while True:
                if isinstance(item, Exception):
                    raise item
                results.append(item)
                item = self._results.get_nowait()
        return results

    def cpu_seconds(self) -> float:
        """0: reads count as CPU time of this process."""
        return 0.0

    def close(self) -> None:
        """Waits for the current reads and stops."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._memory.release()


class ProcessReaders:
    """A reader process of the trainer, replaced whenever it dies.

    A reader that does not accept a message for `send_timeout` seconds is considered frozen.
    """

    def __init__(
        self,
        storages: Sequence[Storage],
        arena: Arena,
        num_threads: int,
        send_timeout: float = 60.0,
    ) -> None:
        self.respawns = 0
        self._send_timeout = send_timeout
        self._setup = (list(storages), num_threads)
        self._arena = arena
        self._pulse = Pulse(arena.memory)
        self._pending: dict[int, ReadRequest] = {}
        self._sent: set[int] = set()
        self._deaths: Counter[int] = Counter()
        self._failed_readers: Counter[str] = Counter()
        self._one_at_a_time = False
        self._past_cpu = 0.0
        self._start()

    def _start(self) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the reader)
        self._connection, child_end = Pipe()
        _set_send_timeout(self._connection, self._send_timeout)
        self._poller = select.poll()
        self._poller.register(self._connection, select.POLLIN)
        self._pulse.beat(time.monotonic(), 0.0)
        self._pulse.set_request(-1)
        # This package first, then all import paths of this process, for a user's own
        # storage; -P keeps the working folder's files from shadowing the standard library.
        paths = [str(Path(evofeed.__file__).parents[1]), *filter(None, sys.path)]
        pipe, arena = child_end.fileno(), self._arena.descriptor
        code = (
            f"import sys; sys.path += [p for p in {paths!r} if p not in sys.path]; "
            f"from evofeed.loader.reader_process import main; "
            f"main({pipe}, {arena}, {self._arena.nbytes})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            pass_fds=(pipe, arena),
            stdin=subprocess.DEVNULL,
            stderr=self._stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        child_end.close()
        self._send(self._setup)

    def submit(self, requests: Sequence[ReadRequest]) -> None:
        """Sends requests, in one message."""
        self._pending.update((request.number, request) for request in requests)
        self._send_pending()

    def _send_pending(self) -> None:
        """Sends unsent requests; after a death one at a time, to identify the fatal chain."""
        requests = [self._pending[number] for number in self._pending if number not in self._sent]
        if self._one_at_a_time:
            requests = [] if self._sent else requests[:1]
        if requests:
            self._sent.update(request.number for request in requests)
            self._send(requests)

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # `poll` detects a dead reader
            try:
                self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
            except BlockingIOError:  # frozen, after part of a message
                self._process.kill()

    def poll(self, timeout: float) -> list[Result]:
        """Finished results; replaces the reader if it is dead."""
        results: list[Result] = []
        try:
            if self._poller.poll(timeout * 1e3):
                results.append(self._receive())
                while self._poller.poll(0):
                    results.append(self._receive())
            elif time.monotonic() - self._pulse.last_beat()[0] > SILENCE_SECONDS:
                self._process.kill()
        except (EOFError, OSError):
            results += self._replace()
        results = [result for result in results if self._pending.pop(result[0], None)]
        for number, _ in results:
            self._sent.discard(number)
        if results:
            self._failed_readers.clear()
            self._one_at_a_time = self._one_at_a_time and bool(self._sent)
            self._send_pending()
        return results

    def _receive(self) -> Result:
        result: Result = pickle.loads(self._connection.recv_bytes())
        return result

    def _replace(self) -> list[Result]:
        """Starts another reader and sends it the pending requests, except of a fatal chain."""
        code, message = self._end()
        self.respawns += 1
        failed = self._failed_readers
        failed["killed" if code < 0 else "exited"] += 1
        if failed["exited"] > _MAX_FAILED_STARTS or failed["killed"] > _MAX_KILLED:
            raise WorkerDied(f"{failed.total()} readers in a row read nothing: {message}")
        results = self._blame(message)
        self._one_at_a_time = True
        self._sent.clear()
        self._start()
        if not results:
            self._send_pending()
        return results

    def _blame(self, message: str) -> list[Result]:
        """The error of a chain that has killed `_MAX_DEATHS` readers."""
        number = self._pulse.last_request()
        if self._sent != {number}:
            return []
        self._deaths[number] += 1
        if self._deaths[number] < _MAX_DEATHS:
            return []
        chain = self._pending[number].location.chain_id
        return [(number, WorkerDied(f"reading it killed a reader: {message}", item=chain))]

    def _end(self) -> tuple[int, str]:
        """Ends the process; returns its exit code, and a message with its last line of stderr."""
        self._past_cpu += self._pulse.last_beat()[1]
        self._connection.close()
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._stderr.close()
        return code, f"exit code {code}{': ' + lines[-1] if lines else ''}"

    def cpu_seconds(self) -> float:
        """CPU time of all readers so far."""
        return self._past_cpu + self._pulse.last_beat()[1]

    def close(self) -> None:
        """Closes the pipe, which ends the reader, and waits for it."""
        if not self._connection.closed:
            self._send(None)
            self._end()


Readers = ThreadReaders | ProcessReaders


def _set_send_timeout(connection: Connection, send_timeout: float) -> None:
    """Makes sending fail after so many seconds without progress, instead of waiting forever."""
    fraction, seconds = math.modf(send_timeout)
    timeval = struct.pack("@ll", int(seconds), int(fraction * 1e6))  # a timeval
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

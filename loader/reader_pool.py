"""Readers that fill the slots: threads in this process, or one reader process that may die.

Both take `ReadRequest`s and give back results in any order. A reader process that
dies or falls silent is replaced and its open requests are sent again; they write
the same bytes to the same slots, so nothing is lost and nothing comes twice.
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
"""A reader without a beat for so long is taken for dead."""
_DEADLY: Final = 3
"""A chain whose reading, alone, a reader did not survive this often is not read again."""
_MAX_FAILED_STARTS: Final = 3
"""Readers that may end by themselves in a row without having read anything."""
_MAX_KILLED: Final = 100
"""Readers that may be killed in a row without having read anything."""


class ThreadReaders:
    """Reader threads in this process: for tests, notebooks and small data.

    Methods are those of `ProcessReaders`.
    """

    def __init__(self, storages: Sequence[Storage], arena: Arena, num_threads: int) -> None:
        self.respawns = 0
        self._storages = storages
        self._memory = memoryview(arena.memory)
        self._pool = ThreadPoolExecutor(num_threads, "evofeed-read")
        self._results: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()

    def submit(self, requests: Sequence[ReadRequest]) -> None:
        """Take some requests; returns at once."""
        for request in requests:
            self._pool.submit(self._work, request)

    def _work(self, request: ReadRequest) -> None:
        try:
            self._results.put(read_request(self._storages, self._memory, request))
        except Exception as error:  # a fault of ours: else nobody would hear of it, and wait
            self._results.put(error)

    def poll(self, timeout: float) -> list[Result]:
        """Results that have come in, after waiting for the first at most so long.

        Raises what a thread raised.
        """
        with contextlib.suppress(queue.Empty):
            found = [self._results.get(timeout=timeout)]
            while not self._results.empty():
                found.append(self._results.get_nowait())
            for one in found:
                if isinstance(one, Exception):
                    raise one
            return [one for one in found if not isinstance(one, Exception)]
        return []

    def cpu_seconds(self) -> float:
        """None but our own."""
        return 0.0

    def close(self) -> None:
        """Wait for the reads under way and stop."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._memory.release()


class ProcessReaders:
    """One reader process beside the trainer, replaced whenever it dies.

    A reader that does not take a message for `taking` seconds is frozen.
    """

    def __init__(
        self, storages: Sequence[Storage], arena: Arena, num_threads: int, taking: float = 60.0
    ) -> None:
        self.respawns = 0
        self._taking = taking
        self._setup = (list(storages), num_threads)
        self._arena = arena
        self._pulse = Pulse(arena.memory)
        self._open: dict[int, ReadRequest] = {}
        self._sent: set[int] = set()
        self._deaths: Counter[int] = Counter()
        self._idle: Counter[str] = Counter()
        self._careful = False
        self._past_cpu = 0.0
        self._start()

    def _start(self) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the reader)
        self._connection, theirs = Pipe()
        _limit_sending(self._connection, self._taking)
        self._poller = select.poll()
        self._poller.register(self._connection, select.POLLIN)
        self._pulse.beat(time.monotonic(), 0.0)
        self._pulse.reads(-1)
        # Our own place first, then whatever this process can import, for a user's own
        # storage; -P keeps the working folder's files from shadowing the standard library.
        paths = [str(Path(evofeed.__file__).parents[1]), *filter(None, sys.path)]
        pipe, arena = theirs.fileno(), self._arena.descriptor
        code = (
            f"import sys; sys.path += [p for p in {paths!r} if p not in sys.path]; "
            f"from evofeed.loader.reader_process import main; "
            f"main({pipe}, {arena}, {self._arena.nbytes})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            pass_fds=(pipe, arena),
            stdin=subprocess.DEVNULL,
            stderr=self._said,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._send(self._setup)

    def submit(self, requests: Sequence[ReadRequest]) -> None:
        """Take some requests, in one message."""
        self._open.update((request.number, request) for request in requests)
        self._send_open()

    def _send_open(self) -> None:
        """Send what has not been sent; after a death one at a time, to find the culprit."""
        requests = [self._open[number] for number in self._open if number not in self._sent]
        if self._careful:
            requests = [] if self._sent else requests[:1]
        if requests:
            self._sent.update(request.number for request in requests)
            self._send(requests)

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # a dead reader is found by poll
            try:
                self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
            except BlockingIOError:  # frozen, with part of a message
                self._process.kill()

    def poll(self, timeout: float) -> list[Result]:
        """Results that have come in; replaces the reader if it is dead."""
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
        results = [result for result in results if self._open.pop(result[0], None)]
        for number, _ in results:
            self._sent.discard(number)
        if results:
            self._idle.clear()
            self._careful = self._careful and bool(self._sent)
            self._send_open()
        return results

    def _receive(self) -> Result:
        result: Result = pickle.loads(self._connection.recv_bytes())
        return result

    def _replace(self) -> list[Result]:
        """Start another reader and send it what is open; gives up on a chain that kills."""
        code, said = self._end()
        self.respawns += 1
        self._idle["killed" if code < 0 else "ended"] += 1
        if self._idle["ended"] > _MAX_FAILED_STARTS or self._idle["killed"] > _MAX_KILLED:
            raise WorkerDied(f"{self._idle.total()} readers in a row read nothing: {said}")
        results = self._blame(said)
        self._careful = True
        self._sent.clear()
        self._start()
        if not results:
            self._send_open()
        return results

    def _blame(self, said: str) -> list[Result]:
        """The chain that killed the reader, if it did so before."""
        number = self._pulse.was_reading()
        if self._sent != {number}:
            return []
        self._deaths[number] += 1
        if self._deaths[number] < _DEADLY:
            return []
        chain = self._open[number].location.chain_id
        return [(number, WorkerDied(f"reading it killed a reader: {said}", item=chain))]

    def _end(self) -> tuple[int, str]:
        """End the process; its exit code, and in words how it ended and what it said last."""
        self._past_cpu += self._pulse.last_beat()[1]
        self._connection.close()
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._said.seek(0)
        text = self._said.read().decode(errors="replace").strip().splitlines()
        self._said.close()
        return code, f"exit code {code}{': ' + text[-1] if text else ''}"

    def cpu_seconds(self) -> float:
        """CPU time of all readers so far."""
        return self._past_cpu + self._pulse.last_beat()[1]

    def close(self) -> None:
        """Close the pipe, which ends the reader, and wait for it."""
        if not self._connection.closed:
            self._send(None)
            self._end()


Readers = ThreadReaders | ProcessReaders


def _limit_sending(connection: Connection, taking: float) -> None:
    """Sending fails once it has not gone on for so many seconds, and does not wait forever."""
    fraction, seconds = math.modf(taking)
    limit = struct.pack("@ll", int(seconds), int(fraction * 1e6))  # a timeval
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

"""The reader process: receives requests, fills slots, and has no other state.

Started by `evofeed.loader.reader_pool.ProcessReaders` as a fresh interpreter, never by
fork, so it works under any launcher and does not import the user's script, nor torch (except for
a crop of Protenix with ties). A request can be sent again to another reader. The process ends
when its pipe closes or its parent has died.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Final

from evofeed.base.errors import EvofeedError, LoaderError
from evofeed.loader.arena import Pulse
from evofeed.loader.read_chain import ReadRequest, read_chain
from evofeed.loader.read_sample import read_sample
from evofeed.store.inner import Storage

BEAT_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 0.005
"""Time a request may wait behind another before one more thread is used."""

Result = tuple[int, Any]
"""A request's number, and the content of its slot (`Slab` or `PackedSlab`) or the `EvofeedError`
that prevented it."""


def read_request(storages: Sequence[Storage], memory: memoryview, request: ReadRequest) -> Result:
    """Executes one request; the error of an unreadable chain is returned, not raised."""
    slot = memory[request.offset : request.offset + request.nbytes]
    begun = time.perf_counter()
    try:
        read: Any = read_chain if request.task is None else read_sample
        slab = read(storages[request.location.dataset], request, slot)
        return request.number, slab._replace(seconds=time.perf_counter() - begun)
    except EvofeedError as error:
        return request.number, error
    except Exception as error:  # the feeder would wait forever for a missing result
        message = f"reading it failed: {type(error).__name__}: {error}"
        return request.number, LoaderError(message, item=request.location.chain_id)


def main(pipe: int, arena: int, nbytes: int) -> None:
    """Serves requests until the trainer closes the pipe or dies.

    Takes the descriptors of this end of the pipe and of the shared memory, and its size.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    parent = os.getppid()
    connection = Connection(pipe)
    memory = mmap.mmap(arena, nbytes)
    stopping = threading.Event()
    pulse = Pulse(memory)
    threading.Thread(target=_beat, args=(pulse, parent, stopping), daemon=True).start()
    try:
        storages, num_threads = pickle.loads(connection.recv_bytes())
        _serve(connection, pulse, storages, memoryview(memory), num_threads)
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass
    stopping.set()
    os._exit(0)  # threads may hang in a dead file system, and nothing needs cleaning up


def _serve(
    connection: Connection,
    pulse: Pulse,
    storages: Sequence[Storage],
    memory: memoryview,
    num_threads: int,
) -> None:
    """Reads the requested samples, one after another in one thread while the storage is fast.

    Passing requests to several threads then costs more than reading. Threads are added, twice as
    many each time, while requests still wait after `_PATIENCE_SECONDS`.
    """
    waiting: deque[ReadRequest] = deque()
    free = threading.Semaphore(num_threads)
    sending = threading.Lock()

    def work() -> None:
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                request = waiting.popleft()
                pulse.set_request(request.number)
                result = read_request(storages, memory, request)
                pulse.set_request(-1)
                pulse.beat(time.monotonic(), time.process_time())  # before stats are read
                with sending, contextlib.suppress(OSError):
                    connection.send_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
        free.release()

    def start(pool: ThreadPoolExecutor, count: int) -> int:
        """Starts up to `count` more threads; returns the number started."""
        started = sum(free.acquire(blocking=False) for _ in range(count))
        for _ in range(started):
            pool.submit(work)
        return started

    with ThreadPoolExecutor(num_threads, "evofeed-read") as pool:
        while True:
            count, patience = 1, _PATIENCE_SECONDS
            while waiting and not connection.poll(patience):
                if not start(pool, count):  # all are busy
                    patience = 20 * _PATIENCE_SECONDS
                count = min(2 * count, num_threads)
            if (requests := pickle.loads(connection.recv_bytes())) is None:
                return
            waiting.extend(requests)
            start(pool, 1)


def _beat(pulse: Pulse, parent: int, stopping: threading.Event) -> None:
    while not stopping.wait(BEAT_SECONDS):
        pulse.beat(time.monotonic(), time.process_time())
        if os.getppid() != parent:
            os._exit(1)

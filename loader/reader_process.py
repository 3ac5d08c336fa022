"""The reader process: requests in, filled slots out, nothing kept.

Started by `evofeed.loader.reader_pool.ProcessReaders` as a fresh interpreter, never by
fork, so it works under any launcher and imports neither torch (but for a crop of Protenix
that cuts between equals) nor the user's script. It holds no state worth saving: whoever sent a
request can send it again to another reader. It ends when its pipe closes or its parent is gone.
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
"""So long may a request wait behind another before one more thread helps."""

Result = tuple[int, Any]
"""A request's number, and what its slot holds, a `Slab` or a `PackedSlab`, or why it could not
be filled, an `EvofeedError`."""


def read_request(storages: Sequence[Storage], memory: memoryview, request: ReadRequest) -> Result:
    """Carry out one request; an unreadable chain is an answer, not an exception."""
    slot = memory[request.offset : request.offset + request.nbytes]
    begun = time.perf_counter()
    try:
        read: Any = read_chain if request.task is None else read_sample
        slab = read(storages[request.location.dataset], request, slot)
        return request.number, slab._replace(seconds=time.perf_counter() - begun)
    except EvofeedError as error:
        return request.number, error
    except Exception as error:  # an answer that never came would be waited for without end
        why = f"reading it failed: {type(error).__name__}: {error}"
        return request.number, LoaderError(why, item=request.location.chain_id)


def main(pipe: int, arena: int, nbytes: int) -> None:
    """Serve requests until the trainer closes the pipe or dies.

    Takes the descriptors of our end of the pipe and of the shared memory, and its size.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to answer
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
    os._exit(0)  # threads may hang in a dead file system; nothing here needs a tidy end


def _serve(
    connection: Connection,
    pulse: Pulse,
    storages: Sequence[Storage],
    memory: memoryview,
    num_threads: int,
) -> None:
    """Read what is asked for, a message's requests one after another in one thread.

    While the storage is quick, handing them to several threads would cost more than reading
    them. More join, twice as many each time, while some still wait after `_PATIENCE_SECONDS`.
    """
    waiting: deque[ReadRequest] = deque()
    free = threading.Semaphore(num_threads)
    sending = threading.Lock()

    def work() -> None:
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                request = waiting.popleft()
                pulse.reads(request.number)
                answer: Any = read_request(storages, memory, request)
                pulse.reads(-1)
                pulse.beat(time.monotonic(), time.process_time())  # stats have it first
                with sending, contextlib.suppress(OSError):
                    connection.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        free.release()

    def start(pool: ThreadPoolExecutor, wanted: int) -> int:
        """Let so many more threads work, if so many are free; how many do."""
        count = sum(free.acquire(blocking=False) for _ in range(wanted))
        for _ in range(count):
            pool.submit(work)
        return count

    with ThreadPoolExecutor(num_threads, "evofeed-read") as pool:
        while True:
            more, patience = 1, _PATIENCE_SECONDS
            while waiting and not connection.poll(patience):
                if not start(pool, more):  # all are busy
                    patience = 20 * _PATIENCE_SECONDS
                more = min(2 * more, num_threads)
            if (requests := pickle.loads(connection.recv_bytes())) is None:
                return
            waiting.extend(requests)
            start(pool, 1)


def _beat(pulse: Pulse, parent: int, stopping: threading.Event) -> None:
    while not stopping.wait(BEAT_SECONDS):
        pulse.beat(time.monotonic(), time.process_time())
        if os.getppid() != parent:
            os._exit(1)

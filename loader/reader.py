"""The reader process: requests in, filled slots out, nothing kept.

Started by `evofeed.loader.readers.ProcessReaders` as a fresh interpreter, never by
fork, so it works under any launcher and imports neither torch nor the user's
script. It holds no state worth saving: whoever sent a request can send it again
to another reader. It ends when its pipe closes or its parent is gone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final

from evofeed.errors import EvofeedError, StoreError
from evofeed.loader.arena import Pulse
from evofeed.loader.reading import ReadRequest, Slab, read_chain
from evofeed.store.storage import Storage

BEAT_SECONDS: Final = 0.5

Result = tuple[int, Slab | EvofeedError]
"""A request's number, and what its slot holds or why it could not be filled."""


def read_request(storages: Sequence[Storage], memory: memoryview, request: ReadRequest) -> Result:
    """Carry out one request; an unreadable chain is an answer, not an exception."""
    slot = memory[request.offset : request.offset + request.nbytes]
    begun = time.perf_counter()
    try:
        slab = read_chain(storages[request.place.dataset], request, slot)
        return request.number, replace(slab, seconds=time.perf_counter() - begun)
    except EvofeedError as error:
        return request.number, error
    except OSError as error:
        return request.number, StoreError(str(error), item=request.place.chain_id)


def main(pipe: int, arena: int, nbytes: int) -> None:
    """Serve requests until the trainer closes the pipe or dies.

    Args:
        pipe: descriptor of our end of the pipe.
        arena: descriptor of the shared memory.
        nbytes: its size.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to answer
    parent = os.getppid()
    connection = Connection(pipe)
    memory = mmap.mmap(arena, nbytes)
    stopping = threading.Event()
    pulse = Pulse(memory)
    threading.Thread(target=_beat, args=(pulse, parent, stopping), daemon=True).start()
    try:
        storages, num_threads = connection.recv()
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
    sending = threading.Lock()

    def work(request: ReadRequest) -> None:
        pulse.reads(request.number)
        answer: Any = read_request(storages, memory, request)
        pulse.reads(-1)
        with sending, contextlib.suppress(OSError):
            connection.send(answer)

    with ThreadPoolExecutor(num_threads, "evofeed-read") as pool:
        while (request := connection.recv()) is not None:
            pool.submit(work, request)


def _beat(pulse: Pulse, parent: int, stopping: threading.Event) -> None:
    while not stopping.wait(BEAT_SECONDS):
        pulse.beat(time.monotonic(), time.process_time())
        if os.getppid() != parent:
            os._exit(1)

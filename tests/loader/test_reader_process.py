"""The reader's own loop: one thread while storage is quick, more behind a slow read."""

from __future__ import annotations

import mmap
import pickle
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest
from tests.loader.records import small_dataset
from tests.loader.storages import Watched, read_of

from evofeed.loader import LoaderConfig
from evofeed.loader.arena import Pulse
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.read_chain import ReadRequest, Slab, slot_nbytes
from evofeed.loader.reader_process import _serve
from evofeed.store import Dataset


class Serving:
    """`_serve` in a thread, with four threads of its own."""

    def __init__(self, dataset: Dataset, stuck: tuple[int, ...]) -> None:
        catalog = ChainCatalog(dataset.index, 0, LoaderConfig())
        places = [catalog.place(int(row)) for row in catalog.rows]
        self.stuck = {read_of(dataset, int(catalog.rows[number])) for number in stuck}
        self.let, self.threads = threading.Event(), list[str]()
        self.storage = Watched(dataset.uri, self.before)
        nbytes = [slot_nbytes(place, True) for place in places]
        self.memory = mmap.mmap(-1, 4096 + sum(nbytes))
        self.requests = [
            ReadRequest(number, place, True, True, 4096 + sum(nbytes[:number]), nbytes[number])
            for number, place in enumerate(places)
        ]
        self.connection, theirs = Pipe()
        pulse, view = Pulse(self.memory), memoryview(self.memory)
        self.thread = threading.Thread(
            target=_serve, args=(theirs, pulse, [self.storage], view, 4), daemon=True
        )
        self.thread.start()

    def before(self, key: str, offset: int, number: int) -> None:
        self.threads.append(threading.current_thread().name)
        assert (key, offset) not in self.stuck or self.let.wait(300)

    def ask(self, *numbers: int) -> None:
        self.connection.send_bytes(pickle.dumps([self.requests[number] for number in numbers]))

    def answers(self, count: int) -> list[int]:
        got = []
        for _ in range(count):
            number, slab = received(self.connection)
            assert isinstance(slab, Slab)
            got.append(number)
        return got


def received(connection: Connection) -> tuple[int, Any]:
    assert connection.poll(240), "no answer"
    answer: tuple[int, Any] = pickle.loads(connection.recv_bytes())
    return answer


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return small_dataset(tmp_path / "d", 8)


@pytest.fixture
def serving(dataset: Dataset, request: pytest.FixtureRequest) -> Iterator[Serving]:
    one = Serving(dataset, getattr(request, "param", ()))
    yield one
    one.let.set()
    one.connection.send_bytes(pickle.dumps(None))
    one.thread.join(240)
    assert not one.thread.is_alive()


@pytest.mark.parametrize("serving", [(0, 1, 2)], indirect=True)
def test_who_waits_behind_slow_reads_gets_threads_of_its_own(serving: Serving) -> None:
    slow = len(serving.stuck)
    serving.ask(*range(8))
    assert sorted(serving.answers(8 - slow)) == list(range(slow, 8))
    assert len(set(serving.threads)) > slow
    serving.let.set()
    assert sorted(serving.answers(slow)) == list(range(slow))


@pytest.mark.parametrize("serving", [(0, 1, 2, 3)], indirect=True)
def test_when_all_threads_are_stuck_the_rest_waits_and_is_read_later(serving: Serving) -> None:
    serving.ask(*range(6))
    serving.ask(6, 7)
    end = time.monotonic() + 240
    while len(serving.threads) < 4:
        assert time.monotonic() < end, "they never began"
        time.sleep(0.01)
    used = time.process_time()
    assert not serving.connection.poll(1.5)
    assert time.process_time() - used < 0.5  # nobody spins meanwhile
    assert len(set(serving.threads)) == 4
    serving.let.set()
    assert sorted(serving.answers(8)) == list(range(8))
    serving.ask(7)
    assert serving.answers(1) == [7]

"""Reader processes that die, hang, freeze or cannot start, and threads behind slow reads."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.loader.children import reader_pid
from tests.loader.records import small_dataset
from tests.loader.storages import read_of, watched
from tests.loader.streams import CONFIG, open_loader, sample_digests

from evofeed.base.errors import StoreError, WorkerDied
from evofeed.loader import LoaderConfig
from evofeed.loader.arena import Arena, Pulse
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.read_chain import ReadRequest, Slab, slot_nbytes
from evofeed.loader.reader_pool import SILENCE_SECONDS, ProcessReaders
from evofeed.store import Dataset


@pytest.mark.slow
def test_a_reader_killed_again_and_again_loses_and_doubles_nothing(
    dataset: Dataset, reference: list[str]
) -> None:
    rng = np.random.default_rng(0)
    kills = 0
    with open_loader(dataset, reader="process", prefetch=3, ready=1) as loader:
        got = sample_digests(loader, 1)
        while len(got) < len(reference):
            if kills < 3 and rng.random() < 0.5:
                time.sleep(float(rng.uniform(0, 0.2)))  # starting, reading, or idle
                pid = reader_pid(loader)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):  # dead of the kill before
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
            got += sample_digests(loader, 1)
        stats = loader.stats()
    assert 1 <= stats["reader_respawns"] <= kills
    assert not stats["bad_chains"]
    assert got == reference


def test_a_reader_that_falls_silent_is_replaced(dataset: Dataset, reference: list[str]) -> None:
    with open_loader(dataset, reader="process", prefetch=1, ready=1) as loader:
        got = sample_digests(loader, 1)
        pid = reader_pid(loader)
        assert pid is not None and loader._arena is not None
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.01)
        long_ago = time.monotonic() - 2 * SILENCE_SECONDS
        Pulse(loader._arena.memory).beat(long_ago, 0.0)
        got += sample_digests(loader)
        assert loader.stats()["reader_respawns"] == 1
    assert got == reference


def test_a_chain_that_kills_its_reader_is_found_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path / "d")
    deadly = dataset.index["chain_id"][5].as_py()
    (tmp_path / "deadly_storage.py").write_text(
        "import os\n"
        "from evofeed.store.storage import LocalStorage\n"
        "class DeadlyStorage(LocalStorage):\n"
        "    def read_into(self, key, offset, out):\n"
        "        super().read_into(key, offset, out)\n"
        f"        if (key, offset) == {read_of(dataset, 5)!r}:\n"
        "            os.abort()\n"
        "    def __reduce__(self):\n"
        "        return DeadlyStorage, (str(self.root),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    from importlib import import_module

    storage = import_module("deadly_storage").DeadlyStorage(dataset.uri)
    wrapped = Dataset(storage, dataset.digest, dataset.manifest, dataset.index)
    with open_loader(wrapped, CONFIG.replace(epoch_len=12), reader="process") as loader:
        assert len(sample_digests(loader)) == 12
        stats = loader.stats()
    assert len(stats["bad_chains"]) == 1
    assert deadly in stats["bad_chains"][0]
    assert "killed a reader" in stats["bad_chains"][0]


def test_readers_that_cannot_start_are_reported_with_what_they_said(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        open_loader(dataset, reader="process") as loader,
        pytest.raises(WorkerDied, match="exit code 1"),
    ):
        list(loader)


def test_a_frozen_reader_that_takes_no_more_is_replaced(tmp_path: Path) -> None:
    """Sending does not block forever: the message is larger than the pipe's buffer."""
    dataset = small_dataset(tmp_path / "d", 1)
    catalog = ChainCatalog(dataset.index, 0, LoaderConfig())
    nbytes = slot_nbytes(catalog.location(0), True)
    arena = Arena(2 * nbytes)
    offset = arena.allocate(nbytes)
    assert offset is not None
    many = [
        ReadRequest(number, catalog.location(0), True, True, offset, nbytes)
        for number in range(4000)
    ]
    assert len(pickle.dumps(many)) > 300_000
    readers = ProcessReaders([dataset.storage], arena, 1, send_timeout=2.0)
    try:
        os.kill(readers._process.pid, signal.SIGSTOP)
        readers.submit(many)
        read: list[int] = []
        while len(read) < len(many):
            for number, slab in readers.poll(60.0):
                assert isinstance(slab, Slab)
                read.append(number)
    finally:
        readers.close()
        arena.close()
    assert sorted(read) == list(range(len(many)))
    assert readers.respawns


def test_a_fault_in_a_reader_thread_reaches_the_loop_that_waits(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise TypeError("no such argument")

    monkeypatch.setattr("evofeed.loader.reader_pool.read_request", fault)
    with open_loader(dataset) as loader, pytest.raises(TypeError, match="no such argument"):
        sample_digests(loader, 1)


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (StoreError("HTTP 500"), "HTTP 500"),  # while others are read
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (ZeroDivisionError("of all things"), "ZeroDivisionError: of all things"),
    ],
)
def test_a_chain_whose_reading_fails_is_replaced(
    dataset: Dataset, error: Exception, reported: str
) -> None:
    where = read_of(dataset, 3)

    def before(key: str, offset: int, number: int) -> None:
        if (key, offset) == where:
            raise error

    config = CONFIG.replace(outage_seconds=36.0)
    with open_loader(watched(dataset, before), config) as loader:
        assert len(sample_digests(loader)) == 24
        (why,) = loader.stats()["bad_chains"]
    assert dataset.index["chain_id"][3].as_py() in why
    assert reported in why

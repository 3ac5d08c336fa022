"""The reader process from the trainer's side."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest
from tests.loader.records import small_dataset

from evofeed.loader import LoaderConfig
from evofeed.loader.arena import Arena
from evofeed.loader.catalog import Catalog
from evofeed.loader.readers import ProcessReaders
from evofeed.loader.reading import ReadRequest, Slab, slot_nbytes


def test_a_frozen_reader_that_takes_no_more_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not waited for: the message is larger than what fits between the two."""
    monkeypatch.setattr("evofeed.loader.readers._TAKING_SECONDS", 2.0)
    dataset = small_dataset(tmp_path / "d", 1)
    catalog = Catalog(dataset, 0, LoaderConfig())
    nbytes = slot_nbytes(catalog.place(0), True)
    arena = Arena(2 * nbytes)
    offset = arena.allocate(nbytes)
    assert offset is not None
    many = [
        ReadRequest(number, catalog.place(0), True, True, offset, nbytes) for number in range(4000)
    ]
    assert len(pickle.dumps(many)) > 300_000
    readers = ProcessReaders([dataset.storage], arena, 1)
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

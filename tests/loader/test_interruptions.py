"""A training loop that breaks, fails, is interrupted, or has two loaders, loses no sample."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path

import pytest
from tests.loader.children import OPENED, python
from tests.loader.records import small_dataset
from tests.loader.storages import watched
from tests.loader.streams import CONFIG, open_loader, sample_digests

from evofeed.base.errors import LoaderError
from evofeed.store import Dataset


def test_ctrl_c_while_waiting_for_data_loses_nothing(
    dataset: Dataset, reference: list[str]
) -> None:
    gate = threading.Event()
    gate.set()
    slow = watched(dataset, lambda *_: gate.wait(300) or None)
    with open_loader(slow, prefetch=1, ready=1) as loader:
        got = sample_digests(loader, 3)
        gate.clear()

        def interrupt() -> None:
            assert loader._feeder is not None
            queue = loader._feeder.ready
            while not queue._not_empty._waiters:  # type: ignore[attr-defined]
                threading.Event().wait(0.01)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            gate.set()

        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                got += sample_digests(loader, 1)
        other.join()
        assert len(got) < len(reference)
        got += sample_digests(loader)
        assert got == reference
        assert loader.state_dict()["consumed"] == len(reference)
        assert "ahead" not in loader.state_dict()


def test_a_loop_that_fails_or_breaks_off_continues_with_the_next_batch(
    dataset: Dataset, reference: list[str]
) -> None:
    with open_loader(dataset) as loader:
        got = sample_digests(loader, 2)
        with pytest.raises(ZeroDivisionError):
            for _ in loader:  # had by the loop that failed
                raise ZeroDivisionError
        got += [reference[2], *sample_digests(loader)]
    assert got == reference


def arenas() -> list[int]:
    """Descriptors of shared memory that this process holds."""
    descriptors = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "evofeed-arena" in str(link.readlink()):
                descriptors.append(int(link.name))
        except FileNotFoundError:  # the listing's own
            continue
    return sorted(descriptors)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("evofeed.loader.batch_maker.BatchMaker.__init__", KeyboardInterrupt),
        ("evofeed.loader.feature_loader.prefault", KeyboardInterrupt),
        ("evofeed.loader.feeder.Feeder.start", RuntimeError),  # no more threads
    ],
)
def test_a_start_that_is_interrupted_leaves_nothing_and_can_be_repeated(
    dataset: Dataset,
    reference: list[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: type[BaseException],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error()

    gc.collect()
    before = arenas()
    with open_loader(dataset) as loader:
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(where, fail)
            next(iter(loader))
        gc.collect()
        assert arenas() == before
        assert sample_digests(loader, 3) == reference[:3]
    assert arenas() == before


def test_a_script_may_go_to_another_folder(
    dataset: Dataset, reference: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between opening and reading, as notebooks and launchers do."""
    monkeypatch.chdir(Path(dataset.uri).parent)
    relative = Dataset.open(Path(dataset.uri).name)
    monkeypatch.chdir(tmp_path)
    with open_loader(relative, reader="process") as loader:
        assert sample_digests(loader) == reference


def test_two_loaders_do_not_disturb_each_other(dataset: Dataset, reference: list[str]) -> None:
    with open_loader(dataset, reader="process") as loader, open_loader(dataset) as other:
        mine, yours = [], []
        while len(mine) < len(reference):
            mine += sample_digests(loader, 1)
            yours += sample_digests(other, 1)
        used = loader.stats()["reader_cpu_seconds"]
        loader.close()
        sample_digests(loader, 1)
        assert loader.stats()["reader_cpu_seconds"] > used > 0  # of all readers so far
    assert mine == yours == reference


INTERRUPTED = f"""{OPENED}
import signal
for batch in loader:
    signal.raise_signal(signal.SIGINT)
"""


def test_a_script_that_is_interrupted_ends_with_that_alone(dataset: Dataset) -> None:
    done = python("-c", INTERRUPTED, dataset.uri)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert done.stderr.count("Traceback") == 1


def test_files_that_vanish_while_training_are_named(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "d", 8)
    with open_loader(dataset, CONFIG, prefetch=1, ready=1) as loader:
        sample_digests(loader, 1)
        for shard in (tmp_path / "d" / "shards").iterdir():
            shard.unlink()
        dataset.storage.close()  # else the open ones are read on, as they may be
        with pytest.raises(LoaderError, match=r"none of the 8 chains .*no such file"):
            sample_digests(loader)

"""A closed folder: whatever links come to stand in it or for it, nothing outside is touched."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.records import published, random_record

from evofeed.base.errors import StoreError
from evofeed.base.within import limited_to, open_input
from evofeed.store import Dataset
from evofeed.store.refs import list_refs, move_ref
from evofeed.store.storage import LocalStorage

ABSENT = "0" * 64


def dataset(folder: Path, seed: int) -> Path:
    published(folder, [random_record(seed)])
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@contextlib.contextmanager
def swapping(first: Path, second: Path) -> Iterator[None]:
    """Exchanges two paths atomically, again and again, within the block."""
    exchange, done = ctypes.CDLL(None).renameat2, threading.Event()

    def swap() -> None:
        while not done.is_set():
            assert not exchange(-100, os.fsencode(first), -100, os.fsencode(second), 2)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def content(path: Path) -> bytes:
    with open_input(path) as file:
        return file.read()


def touched(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_closed_folder_reads_and_writes_as_any_other(home):
    storage = LocalStorage(dataset(home / "a", 1), closed=True)
    with Dataset.of(storage) as opened:
        assert opened.verify(deep=True) == [] and len(opened) == 1
    assert [ref.name for ref in list_refs(storage)] == ["main"]
    move_ref(storage, "other", ABSENT, None)
    storage.put("new/folder/file", b"abc")
    assert storage.read("new/folder/file") == b"abc"
    keys = [item.key for item in storage.files("refs/")]
    assert keys == ["refs/.lock", "refs/main", "refs/other"]
    storage.delete("refs/other")
    storage.delete("refs/other")
    assert [ref.name for ref in list_refs(pickle.loads(pickle.dumps(storage)))] == ["main"]


@pytest.mark.parametrize("link", [".", "refs", "refs/main", "shards", "snapshots", "refs/.lock"])
def test_no_link_leads_out_of_a_closed_folder(link, home):
    """Of the folder itself, of what is in it, and of single files."""
    secret = dataset(home / "secret", 2)
    (secret / "refs" / ".lock").touch()
    ours = home / "team" / "ghost"
    ours.parent.mkdir()
    if link == ".":
        ours.symlink_to(secret)
    else:
        dataset(ours, 1)
        (ours / link).rename(home / "away") if (ours / link).exists() else None
        (ours / link).symlink_to(secret / link)
    before = touched(secret)
    storage = LocalStorage(ours, closed=True)
    with pytest.raises((StoreError, OSError), match=r"out of|symbolic links"):
        if link == "shards":
            storage.read(f"shards/{next((secret / 'shards').iterdir()).name}")
        elif link == "snapshots":
            storage.read(f"snapshots/{Dataset.open(secret).digest}/manifest.json")
        elif link == "refs/.lock":
            move_ref(storage, "planted", ABSENT, None)
        else:
            storage.read("refs/main")
            list_refs(storage)
    for change in (
        lambda: move_ref(storage, "planted", ABSENT, None),
        lambda: storage.put("shards/x.arrow", b"x"),
        lambda: storage.delete("refs/main"),
    ):
        with contextlib.suppress(StoreError, OSError):
            change()
    assert touched(secret) == before


def test_a_link_that_stays_inside_is_followed(home):
    ours = dataset(home / "a", 1)
    (ours / "shards").rename(ours / "elsewhere")
    (ours / "shards").symlink_to(ours / "elsewhere")
    assert Dataset.of(LocalStorage(ours, closed=True)).verify(deep=True) == []


def test_links_swapped_in_a_loop_never_show_or_change_what_is_outside(home):
    """With a folder that is not closed, the secret is changed."""
    secret, ours = dataset(home / "secret", 2), dataset(home / "ours", 1)
    digest, before = Dataset.open(ours).digest, touched(secret)
    (home / "link").symlink_to(secret)
    storage = LocalStorage(ours, closed=True)
    counts = {"seen": 0, "refused": 0}
    with swapping(home / "link", ours):
        for number in range(100_000):
            try:
                assert [ref.digest for ref in list_refs(storage)][:1] == [digest]
                move_ref(storage, f"planted{number % 5}", digest, None)
                counts["seen"] += 1
            except (StoreError, OSError):
                counts["refused"] += 1
            if min(counts.values()) >= 100:
                break
    assert touched(secret) == before
    assert min(counts.values()) >= 100, "the race was not run"


def test_inputs_are_opened_within_every_group_of_folders(home):
    for name in ("inner/a", "outer/b"):
        (home / name).parent.mkdir()
        (home / name).write_text(name)
    (home / "inner" / "link").symlink_to(home / "outer" / "b")
    (home / "inner" / "same").symlink_to(home / "inner" / "a")
    os.mkfifo(home / "inner" / "pipe")
    (home / "inner" / "to_pipe").symlink_to("/dev/tty")
    inner, inner_and_outer = [str(home / "inner")], [str(home / "inner"), str(home / "outer")]
    assert content(home / "inner" / "link") == b"outer/b"
    with limited_to([inner_and_outer, inner]):
        assert content(home / "inner" / "same") == b"inner/a"
        for name in ("link", "to_pipe", "../outer/b"):
            with pytest.raises(OSError, match="leads out of"):
                content(home / "inner" / name)
    with limited_to([inner_and_outer]):
        assert content(home / "inner" / "link") == b"outer/b"
    with limited_to([[]]), pytest.raises(OSError, match="leads out of"):
        content(home / "inner" / "a")
    assert content(home / "inner" / "link") == b"outer/b"


@pytest.mark.parametrize("name", ["raw/a", "raw"])
def test_inputs_swapped_in_a_loop_are_those_within_or_refused(home, name):
    """A file, or its folder, is swapped; if only its path were checked, both would be read."""
    for path in ("inner/raw/a", "outer/raw/a"):
        (home / path).parent.mkdir(parents=True)
        (home / path).write_text(path)
    (home / "inner" / "link").symlink_to(home / "outer" / name)
    counts = {"read": 0, "refused": 0}
    names = home / "inner" / "link", home / "inner" / name
    with limited_to([[str(home / "inner")]]), swapping(*names):
        for _ in range(100_000):
            try:
                assert content(home / "inner" / "raw" / "a") == b"inner/raw/a"
                counts["read"] += 1
            except OSError as error:
                assert "leads out of" in str(error)
                counts["refused"] += 1
            if min(counts.values()) >= 100:
                break
    assert min(counts.values()) >= 100, "the race was not run"

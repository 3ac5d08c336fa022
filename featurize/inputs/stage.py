"""An input in a bucket, copied to this machine before it is featurized.

A plan needs every file's size and time, and workers read files more than once, so the
files of the prefix are fetched as they are and kept: the next run fetches what changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError, ShardMissing
from evofeed.store.inner import S3Storage, Storage, StoredObject

_MARK: Final = ".evofeed-input"
"""File in a copy that holds the address it was copied from."""
_CHUNK: Final = 16 << 20
_AT_ONCE: Final = 16
_SPARE: Final = 1 << 30
"""Bytes of the disk that stay free."""


def is_remote(uri: str) -> bool:
    """Whether an input must be copied here first."""
    return uri.startswith("s3://")


def stage_input(
    uri: str, folder: str, *, progress: Callable[[int, int], None] | None = None
) -> str:
    """Copy an input from a bucket.

    Args:
        folder: where the copy goes, and nothing else; what is there already and unchanged
            stays, what is no longer in the bucket is removed.

    Returns:
        Path of the copy: what to featurize.

    Raises:
        InputError: nothing there, a key that is no path, too little room for it all, or a
            folder with something else in it.
        StoreError: the bucket is not there or cannot be read.
    """
    home = Path(folder).absolute()
    uri = uri.rstrip("/")
    storage = S3Storage(uri)
    found = list(storage.files(""))
    _claim(home, uri)
    if found:
        _copy(storage, found, home, progress)
        _remove_others(home, {item.key for item in found})
        return str(home)
    above, _, name = uri.rpartition("/")
    if above == "s3:/":
        raise InputError("the bucket is empty", path=uri)
    storage = S3Storage(above)
    try:
        found = [storage.stored(name)]
    except ShardMissing:
        raise InputError("nothing is there: neither files below it nor a file", path=uri) from None
    _copy(storage, found, home, progress)
    return str(home / name)


def _claim(home: Path, uri: str) -> None:
    """Mark a folder as the copy of an input; files that are not ours are never removed."""
    mark = home / _MARK
    if mark.is_file() and mark.read_text() == uri:
        return
    if home.exists() and any(home.iterdir()):
        raise InputError(f"not empty, and no copy of {uri}: name another --stage", path=str(home))
    _write(mark, [uri.encode()])


def _copy(
    storage: Storage,
    found: list[StoredObject],
    home: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    for item in found:
        if not (home / item.key).resolve().is_relative_to(home.resolve()):
            raise InputError(f"{item.key!r} is not a path below the prefix", path=storage.uri)
    wanted = []
    for item in found:
        stat = (home / item.key).stat() if (home / item.key).is_file() else None
        state = stat and (stat.st_size, round(stat.st_mtime))
        wanted += [item] if state != (item.nbytes, round(item.modified)) else []
    need, total = sum(item.nbytes for item in wanted), sum(item.nbytes for item in found)
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if need + _SPARE > free:
        raise InputError(
            f"{need} bytes are to be copied to {home}, which has {free} free: name a roomier "
            "folder with --stage, or give a smaller prefix",
            path=storage.uri,
        )
    done = total - need

    def fetch(item: StoredObject) -> int:
        # A few bytes at a time: an alignment_db takes gigabytes.
        sizes = ((at, min(_CHUNK, item.nbytes - at)) for at in range(0, item.nbytes, _CHUNK))
        _write(home / item.key, (_piece(storage, item.key, *one) for one in sizes))
        os.utime(home / item.key, (item.modified, item.modified))
        return item.nbytes

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for nbytes in pool.map(fetch, wanted):
            done += nbytes
            if progress is not None:
                progress(done, total)


def _piece(storage: Storage, key: str, offset: int, nbytes: int) -> bytes:
    piece = bytearray(nbytes)
    storage.read_into(key, offset, memoryview(piece))
    return bytes(piece)


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Written aside and renamed, so that half a file is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _remove_others(home: Path, keys: set[str]) -> None:
    for folder, _, names in os.walk(home, topdown=False):
        here = Path(folder)
        for name in names:
            if (here / name).relative_to(home).as_posix() not in keys | {_MARK}:
                (here / name).unlink()
        if here != home and not any(here.iterdir()):
            here.rmdir()

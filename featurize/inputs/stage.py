"""Copy of an input from a bucket to this machine, before it is featurized.

A plan needs every file's size and time, and workers read files more than once, so the
files of the prefix are copied unchanged and kept: the next run copies only changed files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from evofeed.base.counts import ReportDone
from evofeed.base.errors import InputError, ShardMissing
from evofeed.store.inner import S3Storage, Storage, StoredObject

_MARKER: Final = ".evofeed-input"
"""File in a copy with the URI of its source."""
_CHUNK: Final = 16 << 20
_THREADS: Final = 16
_RESERVED_BYTES: Final = 1 << 30
"""Bytes of the disk that stay free."""


def is_remote(uri: str) -> bool:
    """True for an input in a bucket, which must be copied first."""
    return uri.startswith("s3://")


def stage_input(uri: str, folder: str, *, progress: ReportDone | None = None) -> str:
    """Copy an input from a bucket.

    Args:
        folder: of this copy alone; files that have not changed since the last copy stay, those
            that are no longer in the bucket are removed.

    Returns:
        Path of the copy: the input to featurize.

    Raises:
        InputError: an empty prefix, a key that is not a path, too little free disk, or a
            folder with other files in it.
        StoreError: the bucket does not exist or cannot be read.
    """
    copy = Path(folder).absolute()
    uri = uri.rstrip("/")
    storage = S3Storage(uri)
    objects = list(storage.files(""))
    _claim(copy, uri)
    if objects:
        _copy(storage, objects, copy, progress)
        _remove_others(copy, {item.key for item in objects})
        return str(copy)
    parent, _, name = uri.rpartition("/")
    if parent == "s3:/":
        raise InputError("the bucket is empty", path=uri)
    storage = S3Storage(parent)
    try:
        objects = [storage.stored(name)]
    except ShardMissing:
        raise InputError("nothing is there: neither files below it nor a file", path=uri) from None
    _copy(storage, objects, copy, progress)
    return str(copy / name)


def _claim(copy: Path, uri: str) -> None:
    """Marks a folder as the copy of an input; files in a folder without marker are not touched."""
    marker = copy / _MARKER
    if marker.is_file() and marker.read_text() == uri:
        return
    if copy.exists() and any(copy.iterdir()):
        raise InputError(f"not empty, and no copy of {uri}: name another --stage", path=str(copy))
    _write(marker, [uri.encode()])


def _copy(
    storage: Storage,
    objects: list[StoredObject],
    copy: Path,
    progress: ReportDone | None,
) -> None:
    for item in objects:
        if not (copy / item.key).resolve().is_relative_to(copy.resolve()):
            raise InputError(f"{item.key!r} is not a path below the prefix", path=storage.uri)
    changed = []
    for item in objects:
        stat = (copy / item.key).stat() if (copy / item.key).is_file() else None
        state = stat and (stat.st_size, round(stat.st_mtime))
        changed += [item] if state != (item.nbytes, round(item.modified)) else []
    needed, total = sum(item.nbytes for item in changed), sum(item.nbytes for item in objects)
    copy.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(copy).free
    if needed + _RESERVED_BYTES > free:
        raise InputError(
            f"{needed} bytes are to be copied to {copy}, which has {free} free: name a roomier "
            "folder with --stage, or give a smaller prefix",
            path=storage.uri,
        )
    done = total - needed

    def fetch(item: StoredObject) -> int:
        _write(copy / item.key, _chunks(storage, item))
        os.utime(copy / item.key, (item.modified, item.modified))
        return item.nbytes

    with ThreadPoolExecutor(_THREADS) as pool:
        for nbytes in pool.map(fetch, changed):
            done += nbytes
            if progress is not None:
                progress(done, total)


def _chunks(storage: Storage, item: StoredObject) -> Iterator[bytes]:
    """An object's bytes in chunks: an alignment_db takes gigabytes."""
    for offset in range(0, item.nbytes, _CHUNK):
        chunk = bytearray(min(_CHUNK, item.nbytes - offset))
        storage.read_into(item.key, offset, memoryview(chunk))
        yield bytes(chunk)


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    """Writes a temporary file and renames it, so that no file is incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_others(copy: Path, keys: set[str]) -> None:
    for root, _, names in os.walk(copy, topdown=False):
        folder = Path(root)
        for name in names:
            if (folder / name).relative_to(copy).as_posix() not in keys | {_MARKER}:
                (folder / name).unlink()
        if folder != copy and not any(folder.iterdir()):
            folder.rmdir()

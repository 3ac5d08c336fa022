"""Atomic writes, scratch folders, JSON of untrusted files, and advice on failed writes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a temporary file in the same folder, sync and rename: readers see all or nothing."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the name that the caller knows
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: str = "") -> Iterator[Path]:
    """A temporary folder, in the system's or in `parent`. Those of killed processes, whose locks
    are free, are removed first."""
    for lock in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*/.lock"):
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(descriptor)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=parent or None) as name,
        Path(name, ".new").open("w") as file,
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(name, ".new").rename(Path(name, ".lock"))  # locked before others can find it
        yield Path(name)


def parse_json(data: bytes | str) -> Any:
    """Values of JSON from an untrusted source; too deep nesting is a ValueError, too."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def advice(error: BaseException) -> str:
    """Remedy for a failed write: a full disk, a quota or a limit of file sizes.

    Libraries in other languages give the system's error number in text alone: `(os error 27)`.
    SQLite gives none.
    """
    large = getattr(error, "errno", None) == errno.EFBIG or f"os error {errno.EFBIG}" in str(error)
    unwritten = getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_WRITE"
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if (large or unwritten) and limit != resource.RLIM_INFINITY:
        return f"files may have {limit:,} bytes here: raise the limit (`ulimit -f`)"
    return "the file system takes no file of this size: write elsewhere" if large else "free space"

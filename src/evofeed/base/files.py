"""Files that are there whole or not at all, and folders that are gone afterwards."""

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
    """Write aside in the same folder, sync and rename: a reader sees all of it or nothing."""
    aside = path.with_name(f".tmp-{os.getpid()}-{uuid.uuid4().hex}")
    try:
        with aside.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # which is known to who asked
        raise
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: str = "") -> Iterator[Path]:
    """A folder of the system's, or below `parent`, that is gone afterwards; those that killed
    processes left behind go first: nobody holds their locks."""
    for lock in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*/.lock"):
        with contextlib.suppress(OSError):
            left = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(left)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=parent or None) as name,
        Path(name, ".new").open("w") as held,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        Path(name, ".new").rename(Path(name, ".lock"))  # before it is seen, it is held
        yield Path(name)


def parse_json(data: bytes | str) -> Any:
    """What a text says that others wrote; brackets without end are a ValueError too."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def advice(error: BaseException) -> str:
    """What to do about a write that failed: a full disk, a quota or a limit of file sizes.

    Libraries that are not Python's give the system's number in words alone: `(os error 27)`.
    SQLite says only that it could not write.
    """
    beyond = getattr(error, "errno", None) == errno.EFBIG or f"os error {errno.EFBIG}" in str(error)
    unwritten = getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_WRITE"
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if (beyond or unwritten) and limit != resource.RLIM_INFINITY:
        return f"files may have {limit:,} bytes here: raise the limit (`ulimit -f`)"
    return "the file system takes no file of this size: write elsewhere" if beyond else "free space"

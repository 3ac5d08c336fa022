"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import uuid
from pathlib import Path


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write aside in the same folder, sync and rename: a reader sees all of it or nothing."""
    aside = path.with_name(f".tmp-{os.getpid()}-{uuid.uuid4().hex}")
    try:
        with aside.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def advice(error: BaseException) -> str:
    """What to do about a write that failed: a full disk, a quota or a limit of file sizes.

    Libraries that are not Python's give the system's number in words alone: `(os error 27)`.
    """
    number = getattr(error, "errno", None)
    if number == errno.EFBIG or f"os error {errno.EFBIG}" in str(error):
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            return f"files may have {limit:,} bytes here: raise the limit (`ulimit -f`)"
        return "the file system takes no file of this size: write elsewhere"
    return "free space"

"""Files that are there whole or not at all."""

from __future__ import annotations

import os
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

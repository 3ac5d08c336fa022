"""The cache of search results, keyed by everything that a result depends on.

Two parts in one folder: packs of concatenated results (`packs/*.db`, each result one zstd frame),
and an index in SQLite. A result counts once the index has it, which is after its bytes are on the
disk; so a kill at any moment leaves no partial result.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import JobError
from evofeed.featurize.formats.reading import FileRef, read_bytes

_PACK_NBYTES: Final = 256 << 20
_KEYS_PER_QUERY: Final = 500
"""SQLite takes about 30,000 at most."""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, pack TEXT NOT NULL, offset INTEGER NOT NULL, nbytes INTEGER NOT NULL,
    suffix TEXT NOT NULL, sha256 TEXT NOT NULL, seconds REAL NOT NULL, made_at REAL NOT NULL,
    provenance TEXT NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A result in the cache: its location, the digest of its text, seconds it took to make."""

    ref: FileRef
    sha256: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NewResult:
    """A result to store: one zstd frame, the digest of its text, seconds it took to make."""

    key: str
    packed: bytes
    sha256: str
    seconds: float


def result_key(kind: str, sequence: str, parts: Mapping[str, Any]) -> str:
    """The key of a result: a digest of everything that its bytes depend on."""
    text = json.dumps([kind, sequence, dict(parts)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class SearchCache:
    """The cache in a folder, created if missing.

    Raises:
        JobError: it cannot be opened or written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._pack: Any = None
        self._lock = threading.RLock()
        with self._errors_as_job_error():
            (self.folder / "packs").mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.folder / "cache.sqlite", check_same_thread=False)
            self._db.execute("PRAGMA busy_timeout = 60000")
            self._db.execute(_TABLE)

    def close(self) -> None:
        """Close the index and the pack being written."""
        self._db.close()
        if self._pack is not None:
            self._pack.close()
            self._pack = None

    def find(self, keys: Iterable[str]) -> dict[str, CachedResult]:
        """Cached results by key, of those keys that the cache has."""
        results: dict[str, CachedResult] = {}
        unique = list(dict.fromkeys(keys))
        columns = "key, pack, offset, nbytes, suffix, sha256, seconds"
        with self._errors_as_job_error():
            for start in range(0, len(unique), _KEYS_PER_QUERY):
                batch = unique[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(batch))
                rows = self._db.execute(
                    f"SELECT {columns} FROM results WHERE key IN ({marks})", batch
                )
                for key, pack, offset, size, suffix, digest, seconds in rows:
                    path = str(self.folder / "packs" / pack)
                    ref = FileRef(f"result{suffix}.zst", path, offset, size)
                    results[key] = CachedResult(ref, digest, seconds)
        return results

    def read(self, result: CachedResult) -> bytes:
        """The text of a result.

        Raises:
            InputError: its pack is gone or damaged.
        """
        return read_bytes(result.ref)

    def put(self, results: Iterable[NewResult], suffix: str, provenance: Mapping[str, Any]) -> None:
        """Store results; a key that the cache has already keeps its result."""
        rows, made_at = [], time.time()
        provenance_json = json.dumps(provenance, sort_keys=True)
        with self._errors_as_job_error():
            for result in results:
                pack, offset = self._append(result.packed)
                span = (pack, offset, len(result.packed), suffix)
                times = (result.seconds, made_at)
                rows.append((result.key, *span, result.sha256, *times, provenance_json))
            if not rows:
                return
            self._pack.flush()
            os.fsync(self._pack.fileno())
            marks = ",".join("?" * len(rows[0]))
            with self._db:
                self._db.executemany(f"INSERT OR IGNORE INTO results VALUES ({marks})", rows)

    def _append(self, data: bytes) -> tuple[str, int]:
        if self._pack is None or self._pack.tell() > _PACK_NBYTES:
            if self._pack is not None:
                self._pack.flush()
                os.fsync(self._pack.fileno())
                self._pack.close()
            # A unique name: two jobs may fill one cache, and a pack is never reopened for writing.
            name = f"{time.strftime('%Y%m%d')}-{secrets.token_hex(6)}.db"
            self._pack = (self.folder / "packs" / name).open("xb")
        offset = self._pack.tell()
        self._pack.write(data)
        return Path(self._pack.name).name, offset

    @contextlib.contextmanager
    def _errors_as_job_error(self) -> Iterator[None]:
        """Hold the lock; raise a JobError for a full disk or a damaged file."""
        try:
            with self._lock:
                yield
        except (sqlite3.Error, OSError) as error:
            is_full = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
            reason = getattr(error, "strerror", None) or str(error)
            hint = "free some space" if is_full or "full" in str(error) else "fix that"
            raise JobError(
                f"the cache of searches cannot be used: {reason}; {hint} and run it again, "
                "finished work is kept",
                path=str(self.folder),
            ) from None

"""Results of searches by what made them, for every job that ever asks again.

Two parts in one folder: packs, in which results lie one behind the other (`packs/*.db`, each
result one zstd frame), and an index in SQLite. A result counts once the index has it, which is
after its bytes are on the disk; so whatever is killed, nothing is half there.
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

_PACK: Final = 256 << 20
_KEYS_AT_ONCE: Final = 500
"""Keys a query asks for at once; SQLite takes some 30,000 at most."""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, pack TEXT NOT NULL, offset INTEGER NOT NULL, nbytes INTEGER NOT NULL,
    suffix TEXT NOT NULL, sha256 TEXT NOT NULL, seconds REAL NOT NULL, made_at REAL NOT NULL,
    provenance TEXT NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A result in the cache: where it is, the digest of its text, what it cost to make."""

    ref: FileRef
    sha256: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Made:
    """A result to keep: one zstd frame, the digest of its text, seconds it took."""

    key: str
    packed: bytes
    sha256: str
    seconds: float


def result_key(kind: str, sequence: str, parts: Mapping[str, Any]) -> str:
    """The name of a result: everything that its bytes depend on."""
    text = json.dumps([kind, sequence, dict(parts)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class SearchCache:
    """The cache in a folder, made if it is not there.

    Raises:
        JobError: it cannot be opened or written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._pack: Any = None
        self._lock = threading.RLock()
        with self._one_line():
            (self.folder / "packs").mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.folder / "cache.sqlite", check_same_thread=False)
            self._db.execute("PRAGMA busy_timeout = 60000")
            self._db.execute(_TABLE)

    def close(self) -> None:
        """Close its files."""
        self._db.close()
        if self._pack is not None:
            self._pack.close()
            self._pack = None

    def find(self, keys: Iterable[str]) -> dict[str, CachedResult]:
        """Those of the keys that are there."""
        found: dict[str, CachedResult] = {}
        wanted = list(dict.fromkeys(keys))
        columns = "key, pack, offset, nbytes, suffix, sha256, seconds"
        with self._one_line():
            for start in range(0, len(wanted), _KEYS_AT_ONCE):
                some = wanted[start : start + _KEYS_AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT {columns} FROM results WHERE key IN ({marks})"
                for key, pack, offset, size, suffix, digest, seconds in self._db.execute(
                    query, some
                ):
                    path = str(self.folder / "packs" / pack)
                    ref = FileRef(f"result{suffix}.zst", path, offset, size)
                    found[key] = CachedResult(ref, digest, seconds)
        return found

    def read(self, found: CachedResult) -> bytes:
        """The text of a result.

        Raises:
            InputError: its pack is gone or damaged.
        """
        return read_bytes(found.ref)

    def put(self, results: Iterable[Made], suffix: str, provenance: Mapping[str, Any]) -> None:
        """Keep results; of two with the same key the first stays."""
        rows, now = [], time.time()
        what = json.dumps(provenance, sort_keys=True)
        with self._one_line():
            for made in results:
                pack, offset = self._append(made.packed)
                place = (made.key, pack, offset, len(made.packed), suffix)
                rows.append((*place, made.sha256, made.seconds, now, what))
            if not rows:
                return
            self._pack.flush()
            os.fsync(self._pack.fileno())
            marks = ",".join("?" * len(rows[0]))
            with self._db:
                self._db.executemany(f"INSERT OR IGNORE INTO results VALUES ({marks})", rows)

    def _append(self, data: bytes) -> tuple[str, int]:
        if self._pack is None or self._pack.tell() > _PACK:
            if self._pack is not None:
                self._pack.flush()
                os.fsync(self._pack.fileno())
                self._pack.close()
            # A name of its own: two jobs may fill one cache, and a pack is never written again.
            name = f"{time.strftime('%Y%m%d')}-{secrets.token_hex(6)}.db"
            self._pack = (self.folder / "packs" / name).open("xb")
        offset = self._pack.tell()
        self._pack.write(data)
        return Path(self._pack.name).name, offset

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        """A full disk, a damaged file: one line that says so."""
        try:
            with self._lock:
                yield
        except (sqlite3.Error, OSError) as error:
            full = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT) or "full" in str(
                error
            )
            why = getattr(error, "strerror", None) or str(error)
            hint = "free some space" if full else "see to that"
            raise JobError(
                f"the cache of searches cannot be used: {why}; {hint} and run it again, what is "
                "done is kept",
                path=str(self.folder),
            ) from None

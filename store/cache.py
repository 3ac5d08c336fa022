"""A local copy of remote shards, capped in bytes, shared by any number of processes.

A shard is fetched whole when it is first touched, checked against the sha256 in
its name, and renamed into place. What does not fit is evicted, least recently
used first, and only after the remote has shown that it still has it. If there is
no room at all (everything is in use, the disk is full or read-only), reads go to the remote.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from evofeed.base.errors import ShardCorrupt, ShardMissing, StoreError
from evofeed.store.front import PIECE, FrontStorage
from evofeed.store.storage import LocalStorage, Storage

DOWNLOADS: Final = 2
"""Attempts to get the bytes that a shard's name promises."""
_SHARD: Final = re.compile(r"[0-9a-f]{64}\.arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Where to keep remote shards, and how much of them."""

    folder: str
    """A folder of its own, local and fast."""
    max_nbytes: int = 100 << 30
    """Bytes on disk, those being fetched included."""

    def __post_init__(self) -> None:
        if self.max_nbytes <= 0:
            raise ValueError(f"max_nbytes is {self.max_nbytes}: at least one shard must fit")
        if (Path(self.folder) / "refs").exists():
            raise ValueError(f"{self.folder} is a dataset: a cache needs a folder of its own")


class CachedStorage(FrontStorage):
    """A remote storage read through a `Cache`; writing goes to the remote."""

    def __init__(self, remote: Storage, cache: Cache, sizes: Mapping[str, int]) -> None:
        super().__init__(remote)
        self.sizes = dict(sizes)
        # The same one wherever a script goes later, and for its reader process.
        self.cache = replace(cache, folder=str(Path(cache.folder).absolute()))
        self._folder = Path(self.cache.folder) / "shards"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"no cache can be kept here ({error.strerror}): give Cache another folder",
                path=cache.folder,
            ) from None
        self._local = LocalStorage(self.cache.folder)
        self._lock = threading.Lock()
        self.stats = dict.fromkeys(("hits", "fills", "evictions", "bypassed"), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedStorage, (self.remote, self.cache, self.sizes)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` from the local copy, fetching it first if there is none."""
        if self._present(key):
            try:
                self._local.read_into(key, offset, out)
                self.stats["hits"] += 1
                return
            except ShardMissing:  # evicted this moment by another process
                pass
            except StoreError:  # cut short or unreadable: fetched again next time
                self.forget(key)
            finally:  # held open, a file takes room on the disk after its eviction
                self._local.forget(key)
        self.stats["bypassed"] += 1
        self.remote.read_into(key, offset, out)

    def _present(self, key: str) -> bool:
        name = key.removeprefix("shards/")
        if not _SHARD.fullmatch(name) or name not in self.sizes:
            return False
        path = self._folder / name
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: the last to be evicted
            return True
        with self._lock:  # one fill at a time a process; other processes by file lock
            try:
                return path.exists() or self._fill(name)
            except OSError:  # the folder has gone, or can no longer be written
                return False

    def _fill(self, name: str) -> bool:
        """Fetch a shard; False if there is no room for it under the cap.

        Raises:
            OSError: the disk is full, or cannot be written.
            ShardCorrupt: the remote has other bytes than the name says.
        """
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        with (self._folder / f".{name[:16]}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever waited here finds it filled
            if (self._folder / name).exists():
                return True
            for _ in range(DOWNLOADS):
                aside = self._reserve(self.sizes[name])
                if aside is None:
                    return False
                try:
                    with aside:
                        if self._fetch(name, aside) == name.removesuffix(".arrow"):
                            with self._changing():  # so that nobody counts it under no name
                                Path(aside.name).replace(self._folder / name)
                            self.stats["fills"] += 1
                            return True
                finally:
                    Path(aside.name).unlink(missing_ok=True)
            raise ShardCorrupt(
                f"sha256 is wrong after {DOWNLOADS} downloads: the remote copy is damaged",
                path=f"{self.uri}/shards/{name}",
            )

    def _fetch(self, name: str, file: IO[bytes]) -> str:
        """sha256 of what was fetched into `file`."""
        digest, size = hashlib.sha256(), self.sizes[name]
        buffer = memoryview(bytearray(min(PIECE, size)))
        for done in range(0, size, PIECE):
            part = buffer[: size - done]
            self.remote.read_into(f"shards/{name}", done, part)
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        return digest.hexdigest()

    def _reserve(self, nbytes: int) -> IO[bytes] | None:
        """A locked temporary file of that size; None without room under the cap."""
        with self._changing():
            held = self._held()
            used = sum(stat.st_size for stat in held.values())
            for path in sorted(held, key=lambda path: held[path].st_mtime):
                if used + nbytes <= self.cache.max_nbytes:
                    break
                if self._evict(path):
                    used -= held[path].st_size
            if used + nbytes > self.cache.max_nbytes:
                return None
            file = (self._folder / f".tmp-{uuid.uuid4().hex}").open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)  # shows that its maker lives
            try:
                # Counts against the cap from now on, and finds a full disk before the fetch.
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError:
                Path(file.name).unlink()
                file.close()
                raise
            return file

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """The only one, of all processes, who changes which shards are held."""
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _held(self) -> dict[Path, os.stat_result]:
        held = {}
        for path in self._folder.iterdir():
            if path.name.startswith(".tmp-") and _abandoned(path):
                path.unlink(missing_ok=True)
            elif path.name.startswith(".tmp-") or _SHARD.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    held[path] = path.stat()
        return held

    def _evict(self, path: Path) -> bool:
        if path.name.startswith(".tmp-"):
            return False
        if not answers(self.remote, f"shards/{path.name}", 0):  # never remove the only copy
            return False
        path.unlink(missing_ok=True)  # processes that have it open read on
        self.stats["evictions"] += 1
        return True

    def forget(self, key: str) -> None:
        """Drop the local copy: it has gone bad on disk, or the remote's read was wrong."""
        self._local.forget(key)
        if _SHARD.fullmatch(key.removeprefix("shards/")):
            with contextlib.suppress(OSError):
                (self._folder / key.removeprefix("shards/")).unlink()
        super().forget(key)

    def close(self) -> None:
        """The remote's connections and the local files."""
        super().close()
        self._local.close()


def _abandoned(path: Path) -> bool:
    """Whether the process that was writing a temporary file is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def answers(storage: Storage, key: str, offset: int) -> bool:
    """Whether a storage, behind its cache if it has one, gives what is there now."""
    remote = storage.remote if isinstance(storage, CachedStorage) else storage
    try:
        remote.read_into(key, offset, memoryview(bytearray(8)))
    except (StoreError, OSError):
        return False
    return True

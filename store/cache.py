"""Local copies of remote shards, limited in bytes, shared by any number of processes.

The first read of a shard fetches all of it, checks it against the sha256 in its name, and renames
it into place. The least recently used shards are evicted, each only after the remote has shown that
it still has it. Without room (the limit is too small, the disk is full or read-only), reads go to
the remote.
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
"""Attempts to fetch bytes with the sha256 of a shard's name."""
_SHARD: Final = re.compile(r"[0-9a-f]{64}\.arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Folder and size of a cache of remote shards."""

    folder: str
    """A local, fast folder for the cache alone."""
    max_nbytes: int = 100 << 30
    """Bytes on disk, including shards being fetched."""

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
        # Absolute: the script or its reader process may change the working directory.
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
        """Fill `out` from the local copy, fetching that first if there is none."""
        if self._present(key):
            try:
                self._local.read_into(key, offset, out)
                self.stats["hits"] += 1
                return
            except ShardMissing:  # another process has just evicted it
                pass
            except StoreError:  # truncated or unreadable: fetched again next time
                self.forget(key)
            finally:  # an open file would take room on the disk after its eviction
                self._local.forget(key)
        self.stats["bypassed"] += 1
        self.remote.read_into(key, offset, out)

    def _present(self, key: str) -> bool:
        name = key.removeprefix("shards/")
        if not _SHARD.fullmatch(name) or name not in self.sizes:
            return False
        path = self._folder / name
        with contextlib.suppress(OSError):
            os.utime(path)  # most recently used
            return True
        with self._lock:  # one fill at a time in a process; between processes, a file lock
            try:
                return path.exists() or self._fill(name)
            except OSError:  # the folder was removed, or can no longer be written
                return False

    def _fill(self, name: str) -> bool:
        """Fetch a shard; False if there is no room for it under the limit.

        Raises:
            OSError: the disk is full, or cannot be written.
            ShardCorrupt: the remote has other bytes than the name says.
        """
        self._folder.mkdir(parents=True, exist_ok=True)  # a user may have removed it
        with (self._folder / f".{name[:16]}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a process that waited here finds the shard
            if (self._folder / name).exists():
                return True
            for _ in range(DOWNLOADS):
                temporary = self._reserve(self.sizes[name])
                if temporary is None:
                    return False
                try:
                    with temporary:
                        if self._fetch(name, temporary) == name.removesuffix(".arrow"):
                            with self._exclusive():  # no process counts files meanwhile
                                Path(temporary.name).replace(self._folder / name)
                            self.stats["fills"] += 1
                            return True
                finally:
                    Path(temporary.name).unlink(missing_ok=True)
            raise ShardCorrupt(
                f"sha256 is wrong after {DOWNLOADS} downloads: the remote copy is damaged",
                path=f"{self.uri}/shards/{name}",
            )

    def _fetch(self, name: str, file: IO[bytes]) -> str:
        """Fetch a shard into `file`; its sha256."""
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
        """A locked temporary file of that size; None without room under the limit."""
        with self._exclusive():
            files = self._files()
            used = sum(status.st_size for status in files.values())
            for path in sorted(files, key=lambda path: files[path].st_mtime):
                if used + nbytes <= self.cache.max_nbytes:
                    break
                if self._evict(path):
                    used -= files[path].st_size
            if used + nbytes > self.cache.max_nbytes:
                return None
            file = (self._folder / f".tmp-{uuid.uuid4().hex}").open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)  # shows that its process is alive
            try:
                # Counts against the limit from now on, and fails on a full disk before the fetch.
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError:
                Path(file.name).unlink()
                file.close()
                raise
            return file

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock on the cache's list of files, among all processes."""
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _files(self) -> dict[Path, os.stat_result]:
        """Shards and temporary files of the cache; removes those of dead processes."""
        files = {}
        for path in self._folder.iterdir():
            if path.name.startswith(".tmp-") and _abandoned(path):
                path.unlink(missing_ok=True)
            elif path.name.startswith(".tmp-") or _SHARD.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    files[path] = path.stat()
        return files

    def _evict(self, path: Path) -> bool:
        if path.name.startswith(".tmp-"):
            return False
        if not answers(self.remote, f"shards/{path.name}", 0):  # never remove the only copy
            return False
        path.unlink(missing_ok=True)  # processes that have it open can still read it
        self.stats["evictions"] += 1
        return True

    def forget(self, key: str) -> None:
        """Remove the local copy: it is damaged on disk, or was fetched with wrong bytes."""
        self._local.forget(key)
        if _SHARD.fullmatch(key.removeprefix("shards/")):
            with contextlib.suppress(OSError):
                (self._folder / key.removeprefix("shards/")).unlink()
        super().forget(key)

    def close(self) -> None:
        """Close the remote's connections and the local files."""
        super().close()
        self._local.close()


def _abandoned(path: Path) -> bool:
    """True if the process that was writing a temporary file has ended."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def answers(storage: Storage, key: str, offset: int) -> bool:
    """True if a file can be read now from a storage, or from the remote of its cache."""
    remote = storage.remote if isinstance(storage, CachedStorage) else storage
    try:
        remote.read_into(key, offset, memoryview(bytearray(8)))
    except (StoreError, OSError):
        return False
    return True

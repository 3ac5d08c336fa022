"""Storage of a dataset's files: the interface, and the local folder.

Keys are relative, '/'-separated: `refs/main`, `snapshots/<digest>/manifest.json`,
`snapshots/<digest>/index.arrow`, `shards/<sha256>.arrow`, `parts/<sha256>.arrow`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from evofeed.base.errors import AccessDenied, ShardCorrupt, ShardMissing, StoreError
from evofeed.base.within import is_limited, open_within

Bytes = bytes | bytearray | memoryview
MAX_OPEN = 256
"""Shard files that one storage has open at once."""


class ReadOnlyStorage(StoreError):
    """This storage can neither list nor change files."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file of a dataset: key, size and time of its last change."""

    key: str
    nbytes: int
    modified: float
    """Unix time in seconds."""


@runtime_checkable
class Storage(Protocol):
    """Interface to a folder, a bucket or a service that holds a dataset."""

    @property
    def uri(self) -> str:
        """The dataset's address, as given."""

    def read(self, key: str) -> bytes:
        """All bytes of a file; `ShardMissing` if it does not exist."""

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset`; `ShardMissing`, or `StoreError` if it cannot be filled."""

    def put(self, key: str, data: Bytes) -> None:
        """Create or replace a file so that no reader ever sees half of it."""

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Put `new` if the file's bytes are `old` (None: it does not exist); False if not."""

    def files(self, prefix: str) -> Iterator[StoredObject]:
        """Files whose key begins with `prefix`, temporary ones included, in key order."""

    def delete(self, key: str) -> None:
        """Remove a file; no error if it does not exist."""

    def close(self) -> None:
        """Close files and connections; later calls open them again."""


@runtime_checkable
class SupportsForget(Protocol):
    """A storage that has local copies or open files of shards."""

    def forget(self, key: str) -> None:
        """Drop a copy whose bytes were wrong: the next read is of the original."""


class _Descriptor:
    """An open shard file; closed when the last reference to it goes."""

    def __init__(self, path: Path, root: str | None) -> None:
        try:
            self.number = open_regular(path, root)
        except (FileNotFoundError, NotADirectoryError):
            raise ShardMissing("no such file", path=str(path)) from None
        except PermissionError:
            raise AccessDenied("permission denied: let this user read it", path=str(path)) from None
        except OSError as error:
            raise StoreError(f"cannot open: {error.strerror or error}", path=str(path)) from None
        weakref.finalize(self, os.close, self.number)


class LocalStorage:
    """A folder. Files are written under a temporary name, synced, and renamed.

    Args:
        closed: links that lead out of the folder are refused, also one in place of the folder
            itself; `root` is canonical. Always so within `base.within.limited_to`.
    """

    def __init__(self, root: Path | str, *, closed: bool = False) -> None:
        self._uri = str(root)
        self.root = Path(root).absolute()  # a script may change its working directory later
        self._inside = str(self.root) if closed or is_limited() else None
        self._open: dict[str, _Descriptor] = {}
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """The folder's path, as given."""
        return self._uri

    def path(self, key: str) -> Path:
        """Path of a key. Keys are made of checked names, never of a user's raw text."""
        return self.root / key

    def read(self, key: str) -> bytes:
        """All bytes of a file."""
        return read_file(self.path(key), self._inside)

    def map(self, key: str) -> mmap.mmap:
        """A file's bytes, memory-mapped: shared by all processes of a host.

        Raises:
            ShardMissing, StoreError: as `read`; the file is empty.
        """
        descriptor = self._descriptor(key)
        try:
            return mmap.mmap(descriptor.number, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read: {error}", path=str(self.path(key))) from None
        finally:
            self.forget(key)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` with one positioned read."""
        done, descriptor = 0, self._descriptor(key)
        while done < len(out):  # the kernel may return less than asked, above 2 GiB or on a signal
            try:
                count = os.preadv(descriptor.number, [out[done:]], offset + done)
            except OSError as error:
                self.forget(key)  # on a network file system the path may be another file by now
                why = f"cannot read: {error.strerror}"
                raise StoreError(why, path=str(self.path(key))) from None
            if not count:
                raise ShardCorrupt(
                    f"file ends at byte {offset + done}, {offset + len(out)} expected: truncated",
                    path=str(self.path(key)),
                )
            done += count

    def forget(self, key: str) -> None:
        """Open the file again next time: an undamaged one may have replaced it."""
        with self._lock:
            self._open.pop(key, None)

    def _descriptor(self, key: str) -> _Descriptor:
        descriptor = self._open.get(key)
        if descriptor is None:
            descriptor = _Descriptor(self.path(key), self._inside)
            with self._lock:
                while len(self._open) >= MAX_OPEN:
                    self._open.pop(next(iter(self._open)))
                self._open[key] = descriptor
        return descriptor

    def put(self, key: str, data: Bytes) -> None:
        """Write a temporary file, sync, rename, sync the folder."""
        try:
            with self._folder_of(key) as folder:
                target = folder / key.rpartition("/")[2]
                temporary = folder / f".tmp-{os.getpid()}-{uuid.uuid4().hex}"
                try:
                    with temporary.open("xb", buffering=0) as file:
                        _write(file, data)
                        os.fsync(file.fileno())
                    temporary.replace(target)
                finally:
                    temporary.unlink(missing_ok=True)
                _sync_folder(folder)
        except OSError as error:
            raise _write_error(error, self.path(key), len(data)) from error

    def _folder_of(self, key: str) -> contextlib.AbstractContextManager[Path]:
        """The folder of a key, made if missing; by its descriptor if the storage is closed."""
        folder = self.path(key).parent
        folder.mkdir(parents=True, exist_ok=True)
        return _within(folder, self._inside)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Compare and replace under a file lock: atomic where `flock` works (NFS: version 4)."""
        with self._folder_of(key) as folder, _lock_file(folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                current: bytes | None = self.read(key)
            except ShardMissing:
                current = None
            if current != old:
                return False
            self.put(key, new)
            return True

    def files(self, prefix: str) -> Iterator[StoredObject]:
        """Files below a prefix, in key order."""
        folder = self.root / prefix
        if not folder.is_dir():
            return
        with _within(folder, self._inside) as opened:
            for path in sorted(opened.rglob("*")):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if path.is_file():
                        status = path.stat()
                        key = f"{prefix.rstrip('/')}/{path.relative_to(opened).as_posix()}"
                        yield StoredObject(key.lstrip("/"), status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """Remove a file, and its folder if that is empty then."""
        path = self.path(key)
        with contextlib.suppress(FileNotFoundError), _within(path.parent, self._inside) as folder:
            (folder / path.name).unlink()
        with contextlib.suppress(OSError):
            if path.parent.parent != self.root and self._inside is None:
                path.parent.rmdir()

    def close(self) -> None:
        """Close the shard files, each once no thread reads from it."""
        with self._lock:
            self._open.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        # Descriptors are not valid in another process.
        return partial(LocalStorage, closed=self._inside is not None), (str(self.root),)


def open_regular(path: Path, inside: str | None = None) -> int:
    """A descriptor for reading a regular file; never blocks on a pipe or a device.

    Args:
        inside: the folder it must be in after links are followed; None for anywhere.

    Raises:
        OSError: it cannot be opened, is a pipe, a device or a folder, or is outside.
    """
    if inside is not None:
        number = open_within(path, [[inside]])
    else:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return number


@contextlib.contextmanager
def _within(folder: Path, inside: str | None) -> Iterator[Path]:
    """A folder's path; if it must be in `inside`, through a descriptor that no link redirects."""
    if inside is None:
        yield folder
        return
    try:
        number = open_within(folder, [[inside]], os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise StoreError(f"cannot be used: {error.strerror}", path=str(folder)) from None
    try:
        yield Path(f"/proc/self/fd/{number}")
    finally:
        os.close(number)


def _lock_file(folder: Path) -> IO[bytes]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(folder / ".lock", flags, 0o666), "rb+")


def read_file(path: Path, inside: str | None = None) -> bytes:
    """All bytes of a local file, opened as `open_regular`; `ShardMissing` if it does not exist."""
    descriptor = _Descriptor(path, inside)
    try:
        with FileIO(descriptor.number, closefd=False) as file:
            return file.read()
    except OSError as error:
        raise StoreError(f"cannot read: {error.strerror or error}", path=str(path)) from None


def _write(file: FileIO, data: Bytes) -> None:
    """Writes all of `data`: one call of `write` may write less."""
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(error: OSError, path: Path, nbytes: int) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return StoreError(
            f"no room for {nbytes} bytes ({os.strerror(error.errno)}): "
            "free space or raise the limit, then try again",
            path=str(path),
        )
    return StoreError(f"cannot write: {error.strerror or error}", path=str(path))


def now() -> str:
    """The current time in UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

"""Storage of a dataset's files: one small interface, and the local folder.

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
"""Shard files held open at once by one storage."""


class ReadOnlyStorage(StoreError):
    """This storage can neither list nor change files."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file of a dataset: key, size and age."""

    key: str
    nbytes: int
    modified: float
    """Unix time in seconds."""


@runtime_checkable
class Storage(Protocol):
    """What a dataset needs of the place it is in."""

    @property
    def uri(self) -> str:
        """The dataset's address, as given."""

    def read(self, key: str) -> bytes:
        """All bytes of a file; `ShardMissing` if it is not there."""

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset`; `ShardMissing`, or `StoreError` if it cannot be filled."""

    def put(self, key: str, data: Bytes) -> None:
        """Create or replace a file so that no reader ever sees half of it."""

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Put `new` if the file still holds `old` (None: is absent); False if it does not."""

    def files(self, prefix: str) -> Iterator[StoredObject]:
        """Files whose key begins with `prefix`, temporary ones included, in key order."""

    def delete(self, key: str) -> None:
        """Remove a file; no error if it is gone."""

    def close(self) -> None:
        """Let go of open files and connections; later calls open them again."""


@runtime_checkable
class Keeping(Protocol):
    """A storage that keeps copies or open files of what it has read."""

    def forget(self, key: str) -> None:
        """What was read was wrong: read it again next time, from where it really is."""


class _Descriptor:
    """An open shard file; closed when its last reader lets go of it."""

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
    """A folder. Writes go aside, are synced, and are renamed into place.

    Args:
        closed: links that lead out of it are refused, wherever they come to stand, the folder's
            own name included; `root` is canonical. Always so within `base.within.limited_to`.
    """

    def __init__(self, root: Path | str, *, closed: bool = False) -> None:
        self._uri = str(root)
        self.root = Path(root).absolute()  # the same one wherever a script goes later
        self._inside = str(self.root) if closed or is_limited() else None
        self._open: dict[str, _Descriptor] = {}
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """The folder's path, as given."""
        return self._uri

    def path(self, key: str) -> Path:
        """Where a key is. Keys are ours and already checked, never a user's raw text."""
        return self.root / key

    def read(self, key: str) -> bytes:
        """All bytes of a file."""
        return read_file(self.path(key), self._inside)

    def map(self, key: str) -> mmap.mmap:
        """A file's bytes, mapped: shared by all processes of a host.

        Raises:
            ShardMissing, StoreError: as `read`; it is empty.
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
                got = os.preadv(descriptor.number, [out[done:]], offset + done)
            except OSError as error:
                self.forget(key)  # on a network's file system it may be another file by now
                why = f"cannot read: {error.strerror}"
                raise StoreError(why, path=str(self.path(key))) from None
            if not got:
                raise ShardCorrupt(
                    f"file ends at byte {offset + done}, {offset + len(out)} expected: truncated",
                    path=str(self.path(key)),
                )
            done += got

    def forget(self, key: str) -> None:
        """Open the file again next time: it may have been replaced by a sound one."""
        with self._lock:
            self._open.pop(key, None)

    def _descriptor(self, key: str) -> _Descriptor:
        found = self._open.get(key)
        if found is None:
            found = _Descriptor(self.path(key), self._inside)
            with self._lock:
                while len(self._open) >= MAX_OPEN:
                    self._open.pop(next(iter(self._open)))
                self._open[key] = found
        return found

    def put(self, key: str, data: Bytes) -> None:
        """Write aside, sync, rename, sync the folder."""
        try:
            with self._folder_of(key) as folder:
                target = folder / key.rpartition("/")[2]
                aside = folder / f".tmp-{os.getpid()}-{uuid.uuid4().hex}"
                try:
                    with aside.open("xb", buffering=0) as file:
                        _write(file, data)
                        os.fsync(file.fileno())
                    aside.replace(target)
                finally:
                    aside.unlink(missing_ok=True)
                _sync_folder(folder)
        except OSError as error:
            raise _write_error(error, self.path(key), len(data)) from error

    @contextlib.contextmanager
    def _folder_of(self, key: str) -> Iterator[Path]:
        """The folder a key is in, made if it is missing; by its handle if we are closed."""
        folder = self.path(key).parent
        folder.mkdir(parents=True, exist_ok=True)
        with _within(folder, self._inside) as place:
            yield place

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Compare and replace under a file lock: atomic wherever `flock` is (NFS: version 4)."""
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
        with _within(folder, self._inside) as inside:
            for path in sorted(inside.rglob("*")):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if path.is_file():
                        found = path.stat()
                        key = f"{prefix.rstrip('/')}/{path.relative_to(inside).as_posix()}"
                        yield StoredObject(key.lstrip("/"), found.st_size, found.st_mtime)

    def delete(self, key: str) -> None:
        """Remove a file and, if that leaves it empty, its folder."""
        path = self.path(key)
        with contextlib.suppress(FileNotFoundError), _within(path.parent, self._inside) as folder:
            (folder / path.name).unlink()
        with contextlib.suppress(OSError):
            if path.parent.parent != self.root and self._inside is None:
                path.parent.rmdir()

    def close(self) -> None:
        """Close the shard files, once nobody reads from them."""
        with self._lock:
            self._open.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        # Descriptors stay where they were opened.
        return partial(LocalStorage, closed=self._inside is not None), (str(self.root),)


def open_regular(path: Path, inside: str | None = None) -> int:
    """A descriptor for reading a file; one that only looks like a file never holds us up.

    Args:
        inside: the folder it must be in, wherever links lead; None for anywhere.

    Raises:
        OSError: it cannot be opened, or is a pipe, a device or a folder, or outside.
    """
    if inside is not None:
        number = open_within(path, [[inside]])
    else:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return number


@contextlib.contextmanager
def _within(folder: Path, inside: str | None) -> Iterator[Path]:
    """A folder by another name that nobody can bend, if it must be inside of one."""
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
    """All bytes of a local file, as `open_regular`; `ShardMissing` if it is not there."""
    descriptor = _Descriptor(path, inside)
    try:
        with FileIO(descriptor.number, closefd=False) as file:
            return file.read()
    except OSError as error:
        raise StoreError(f"cannot read: {error.strerror or error}", path=str(path)) from None


def _write(file: FileIO, data: Bytes) -> None:
    """All of `data`: the kernel may take less than it was given."""
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
    """This moment in UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

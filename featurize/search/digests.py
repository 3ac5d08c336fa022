"""A database named by its content, and whether it is still the one it was."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from evofeed.base.errors import InputError, JobError
from evofeed.featurize.search.config import Database

_HASHED_WHOLE: Final = 4 << 30
_SAMPLES, _SAMPLE = 64, 1 << 20
_BITE: Final = 4 << 20


class FileStamp(NamedTuple):
    """A file as it was seen."""

    path: str
    nbytes: int
    mtime_ns: int
    inode: int


def database_files(database: Database) -> list[Path]:
    """The files of a database, by name.

    Raises:
        InputError: there is none.
    """
    if database.more:
        return [file for one in _alone(database) for file in database_files(one)]
    path = Path(database.path)
    # hh-suite: NAME_a3m.ffdata, ...; mmseqs: NAME, NAME.dbtype, NAME_h, NAME_h.index, ...
    beside = (path.parent.glob(f"{path.name}{joint}*") for joint in "._")
    family = sorted(file for found in beside for file in found if not file.is_dir())
    is_fasta = path.is_file() and not Path(f"{path}.dbtype").exists()
    files = [path] if is_fasta or not family else [p for p in (path,) if p.exists()] + family
    if not files[0].exists():
        raise InputError("no such sequence database (FASTA, hhblits or mmseqs)", path=str(path))
    return files


def stamps_of(database: Database) -> list[FileStamp]:
    """The files of a database as they are now.

    Raises:
        InputError: one cannot be looked at.
    """
    return [_stamp(path) for path in database_files(database)]


def database_digest(database: Database) -> str:
    """Names a database by its content, wherever it is; files beyond 4 GiB by samples and size.

    Raises:
        InputError: it cannot be read.
    """
    if database.more:
        digests = [database_digest(one) for one in _alone(database)]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()
    start = len(Path(database.path).name)
    parts = [f"{Path(s.path).name[start:]} {_file_digest(s)}" for s in stamps_of(database)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _alone(database: Database) -> list[Database]:
    """The databases of a joint search."""
    return [dataclasses.replace(database, path=path, more=()) for path in database.paths]


def check_unchanged(database: Database, digest: str) -> None:
    """Nothing, if a database is the one that has this digest.

    Raises:
        JobError: it is another.
    """
    if database_digest(database) != digest:
        raise JobError(
            "this database is not the one the search began with (by its digest): run the search "
            "again to search the new one, or put the old one back",
            path=database.path,
        )


def _stamp(path: Path) -> FileStamp:
    try:
        seen = path.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
    return FileStamp(str(path), seen.st_size, seen.st_mtime_ns, seen.st_ino)


@lru_cache(maxsize=4096)
def _file_digest(stamp: FileStamp) -> str:
    """A file's content, read once a process unless the file changes."""
    digest = hashlib.sha256()
    try:
        with Path(stamp.path).open("rb") as handle:
            if stamp.nbytes <= _HASHED_WHOLE:
                while block := handle.read(_BITE):
                    digest.update(block)
                return digest.hexdigest()
            digest.update(str(stamp.nbytes).encode())
            for number in range(_SAMPLES):
                handle.seek((stamp.nbytes - _SAMPLE) * number // (_SAMPLES - 1))
                digest.update(handle.read(_SAMPLE))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=stamp.path) from None
    return digest.hexdigest()

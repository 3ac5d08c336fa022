"""One unit of a search: some sequences against one database, on whatever machine holds it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError, JobError
from evofeed.featurize.job.work import Task, UnitOutput
from evofeed.featurize.search.cache import Made
from evofeed.featurize.search.config import Database, Kind, SearchConfig
from evofeed.featurize.search.programs import Scratch
from evofeed.featurize.search.searchers import Query, Searcher, kind_of, program_of

_PACKED: Final = 3
"""zstd's level: an alignment packs six- to tenfold in a hundredth of the time of its search."""


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """What results of a database depend on: its content, its format and who searches it."""

    digest: str
    kind: Kind
    program: str
    nbytes: int


def look_at(database: Database, config: SearchConfig) -> DatabaseInfo:
    """A database as it is on this machine.

    Raises:
        InputError: it is not here, or its program.
    """
    kind = kind_of(database)
    program = program_of(kind, database.is_template, config)
    digest = database_digest(database)  # of files that can be read
    files = (file for path in database.paths for file in database_files(path))
    return DatabaseInfo(digest, kind, program, sum(file.stat().st_size for file in files))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(UnitOutput):
    """What comes back from a unit.

    Attributes:
        failures: `type message` of what was searched in vain, by key.
        info: of the database, where that was all that was asked.
    """

    made: tuple[Made, ...] = ()
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    info: DatabaseInfo | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(Task):
    """Sequences to search in a database; without `info` it only looks at the database.

    Attributes:
        info: of the database as it was when the job began.
        deadline: seconds one call of a program may take.
        scratch: folder for the programs' files; the system's if empty.
    """

    database: Database
    config: SearchConfig
    queries: tuple[Query, ...] = ()
    info: DatabaseInfo | None = None
    deadline: float = 3600.0
    scratch: str = ""

    def work(self, set_current: Callable[[str], None]) -> SearchResult:
        """Search; the items in hand are keys.

        Raises:
            InputError: the database is not here, or its program.
            JobError: it is another one than at the beginning; the disk is full.
        """
        if self.info is None:
            return SearchResult(unit_id=self.unit_id, info=look_at(self.database, self.config))
        if not self.queries:
            return SearchResult(unit_id=self.unit_id)
        database, info = self.database, self.info
        self._check(database, info)
        began = time.monotonic()
        place = lambda: Scratch(self.deadline, self.scratch)  # noqa: E731
        results = Searcher(database, self.config, place, set_current).search(self.queries)
        set_current("")
        check_unchanged(database, info.digest)  # what was read may be of another
        seconds = time.monotonic() - began
        good = {key: data for key, data in results.items() if isinstance(data, bytes)}
        failures = {
            key: {"type": type(error).__name__, "message": error.message}
            for key, error in results.items()
            if isinstance(error, InputError)
        }
        made = tuple(packed(key, data, seconds / len(results)) for key, data in good.items())
        return SearchResult(unit_id=self.unit_id, made=made, failures=failures, seconds=seconds)

    def _check(self, database: Database, info: DatabaseInfo) -> None:
        check_unchanged(database, info.digest)
        here = program_of(info.kind, database.is_template, self.config)
        if here != info.program:
            raise JobError(
                f"{here} is here, but the search began with {info.program}: give every machine "
                "the same, and run it again",
                path=database.path,
            )


def packed(key: str, data: bytes, seconds: float) -> Made:
    """A result as the cache keeps it."""
    import zstandard

    frame = zstandard.ZstdCompressor(level=_PACKED).compress(data)
    return Made(key, frame, hashlib.sha256(data).hexdigest(), seconds)


_HASHED_WHOLE: Final = 4 << 30
_SAMPLES, _SAMPLE = 64, 1 << 20


def database_files(path: str) -> list[Path]:
    """The files of a database, by name.

    Raises:
        InputError: there is none.
    """
    first = Path(path)
    # hh-suite: NAME_a3m.ffdata, ...; mmseqs: NAME, NAME.dbtype, NAME_h, NAME_h.index, ...
    beside = (first.parent.glob(f"{first.name}{joint}*") for joint in "._")
    family = sorted(file for found in beside for file in found if not file.is_dir())
    if first.is_file() and not Path(f"{path}.dbtype").exists():  # FASTA
        return [first]
    files = [first, *family] if first.exists() or not family else family
    if not files[0].exists():
        raise InputError("no such sequence database (FASTA, hhblits or mmseqs)", path=path)
    return files


def database_digest(database: Database) -> str:
    """Names a database by its content, wherever it is; files beyond 4 GiB by samples and size.

    Raises:
        InputError: it cannot be read.
    """
    digests = []
    for path in database.paths:
        start = len(Path(path).name)
        parts = [f"{file.name[start:]} {_file_digest(file)}" for file in database_files(path)]
        digests.append(hashlib.sha256("\n".join(parts).encode()).hexdigest())
    joint = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return joint if database.more else digests[0]


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


def _file_digest(path: Path) -> str:
    try:
        seen = path.stat()
        return _content_digest(str(path), seen.st_size, seen.st_mtime_ns, seen.st_ino)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None


@lru_cache(maxsize=4096)
def _content_digest(path: str, nbytes: int, mtime_ns: int, inode: int) -> str:
    """A file's content, read once a process unless the file changes."""
    with Path(path).open("rb") as handle:
        if nbytes <= _HASHED_WHOLE:
            return hashlib.file_digest(handle, "sha256").hexdigest()
        digest = hashlib.sha256(str(nbytes).encode())
        for number in range(_SAMPLES):
            handle.seek((nbytes - _SAMPLE) * number // (_SAMPLES - 1))
            digest.update(handle.read(_SAMPLE))
    return digest.hexdigest()

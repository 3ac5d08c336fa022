"""One unit of a search: some sequences in one database, on a machine that holds it."""

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
from evofeed.featurize.search.cache import NewResult
from evofeed.featurize.search.config import Database, Kind, SearchConfig
from evofeed.featurize.search.programs import Scratch
from evofeed.featurize.search.searchers import Query, Searcher, kind_of, program_of

_ZSTD_LEVEL: Final = 3
"""Level of zstd: an alignment shrinks six- to tenfold in a hundredth of its search's time."""


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """Content, format and search program of a database, on which results depend."""

    digest: str
    kind: Kind
    program: str
    nbytes: int


def inspect_database(database: Database, config: SearchConfig) -> DatabaseInfo:
    """Digest, kind, program and size of a database on this machine.

    Raises:
        InputError: it or its program is not on this machine.
    """
    kind = kind_of(database)
    program = program_of(kind, database.is_template, config)
    digest = database_digest(database)  # of files that can be read
    files = (file for path in database.paths for file in database_files(path))
    return DatabaseInfo(digest, kind, program, sum(file.stat().st_size for file in files))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(UnitOutput):
    """Result of a unit.

    Attributes:
        failures: `type message` of queries without a result, by key.
        info: of the database, if the task had none.
    """

    results: tuple[NewResult, ...] = ()
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    info: DatabaseInfo | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(Task):
    """Sequences to search in a database; without `info` it only inspects the database.

    Attributes:
        info: of the database when the job began.
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
        """Search the queries; the current item is a key.

        Raises:
            InputError: the database or its program is not on this machine.
            JobError: the database has changed since the search began; the disk is full.
        """
        if self.info is None:
            info = inspect_database(self.database, self.config)
            return SearchResult(unit_id=self.unit_id, info=info)
        if not self.queries:
            return SearchResult(unit_id=self.unit_id)
        database, info = self.database, self.info
        self._check(database, info)
        began = time.monotonic()
        scratch = lambda: Scratch(self.deadline, self.scratch)  # noqa: E731
        outcomes = Searcher(database, self.config, scratch, set_current).search(self.queries)
        set_current("")
        check_unchanged(database, info.digest)  # the programs may have read either version
        seconds = time.monotonic() - began
        results, failures = [], {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, bytes):
                results.append(_pack_result(key, outcome, seconds / len(outcomes)))
            else:
                failures[key] = {"type": type(outcome).__name__, "message": outcome.message}
        return SearchResult(
            unit_id=self.unit_id, results=tuple(results), failures=failures, seconds=seconds
        )

    def _check(self, database: Database, info: DatabaseInfo) -> None:
        check_unchanged(database, info.digest)
        program = program_of(info.kind, database.is_template, self.config)
        if program != info.program:
            raise JobError(
                f"this machine has {program}, but the search began with {info.program}: install "
                "the same on every machine, and run it again",
                path=database.path,
            )


def _pack_result(key: str, data: bytes, seconds: float) -> NewResult:
    """A result packed for the cache."""
    import zstandard

    frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
    return NewResult(key, frame, hashlib.sha256(data).hexdigest(), seconds)


_MAX_FULL_HASH: Final = 4 << 30
_SAMPLES, _SAMPLE_NBYTES = 64, 1 << 20


def database_files(path: str) -> list[Path]:
    """The files of a database, by name.

    Raises:
        InputError: there is none.
    """
    first = Path(path)
    if first.is_file() and not Path(f"{path}.dbtype").exists():  # FASTA
        return [first]
    # hh-suite: NAME_a3m.ffdata, ...; mmseqs: NAME, NAME.dbtype, NAME_h, NAME_h.index, ...
    matches = (*first.parent.glob(f"{first.name}.*"), *first.parent.glob(f"{first.name}_*"))
    parts = sorted(file for file in matches if not file.is_dir())
    files = [first, *parts] if first.exists() or not parts else parts
    if not files[0].exists():
        raise InputError("no such sequence database (FASTA, hh-suite or mmseqs)", path=path)
    return files


def database_digest(database: Database) -> str:
    """Digest of a database's content, wherever it is; of files beyond 4 GiB, size and samples.

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
    """Check that a database still has this digest.

    Raises:
        JobError: it has another.
    """
    if database_digest(database) != digest:
        raise JobError(
            "this database is not the one the search began with (by its digest): run the search "
            "again to search the new one, or put the old one back",
            path=database.path,
        )


def _file_digest(path: Path) -> str:
    try:
        stat = path.stat()
        return _content_digest(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None


@lru_cache(maxsize=4096)
def _content_digest(path: str, nbytes: int, mtime_ns: int, inode: int) -> str:
    """Digest of a file's content, read once per process unless the file changes."""
    with Path(path).open("rb") as handle:
        if nbytes <= _MAX_FULL_HASH:
            return hashlib.file_digest(handle, "sha256").hexdigest()
        digest = hashlib.sha256(str(nbytes).encode())
        for number in range(_SAMPLES):
            handle.seek((nbytes - _SAMPLE_NBYTES) * number // (_SAMPLES - 1))
            digest.update(handle.read(_SAMPLE_NBYTES))
    return digest.hexdigest()

"""One unit of a search: some sequences against one database, on whatever machine holds it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from evofeed.base.errors import InputError, JobError
from evofeed.featurize.job.work import UnitOutput
from evofeed.featurize.search.cache import Made
from evofeed.featurize.search.config import Database, Kind, SearchConfig
from evofeed.featurize.search.digests import check_unchanged, database_digest, stamps_of
from evofeed.featurize.search.programs import Scratch
from evofeed.featurize.search.searchers import Query, kind_of, program_of, search

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
    nbytes = sum(stamp.nbytes for stamp in stamps_of(database))
    return DatabaseInfo(database_digest(database), kind, program, nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(UnitOutput):
    """What comes back from a unit.

    Attributes:
        made: results, packed.
        failures: `type message` of what was searched in vain, by key.
        info: of the database, where that was all that was asked.
        seconds: the unit took.
    """

    made: tuple[Made, ...] = ()
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    info: DatabaseInfo | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask:
    """What a worker needs to know: small, picklable. Without `info` it looks at the database.

    Attributes:
        unit_id: its name.
        database: where to look.
        config: settings.
        queries: what to look for.
        info: of the database as it was when the job began.
        deadline: seconds one call of a program may take.
        scratch: folder for the programs' files; the system's if empty.
    """

    unit_id: str
    database: Database
    config: SearchConfig
    queries: tuple[Query, ...] = ()
    info: DatabaseInfo | None = None
    deadline: float = 3600.0
    scratch: str = ""
    dataset_uri: str = ""
    expected_memory: int = 0

    def work(self, in_hand: Callable[[str], None]) -> SearchResult:
        """Search; `in_hand` is called with each key before its sequence is touched.

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
        results = search(database, self.queries, self.config, place, in_hand)
        in_hand("")
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

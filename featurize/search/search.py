"""A search as it runs: what the cache has, what is missing, what it cost."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from evofeed.base.errors import InputError, JobError
from evofeed.featurize.job.executors import Executor
from evofeed.featurize.search.cache import CachedResult, SearchCache, result_key
from evofeed.featurize.search.config import Database, SearchConfig
from evofeed.featurize.search.dispatch import REST, TICK, Dispatch, Why
from evofeed.featurize.search.options import SearchOptions, SearchProgress, SearchReport
from evofeed.featurize.search.plan import Schedule, SearchUnit, make_units
from evofeed.featurize.search.searchers import Query, kind_of, profile_key, suffix_of
from evofeed.featurize.search.shards import join_shards
from evofeed.featurize.search.work import (
    DatabaseInfo,
    SearchResult,
    SearchTask,
    joined,
    look_at,
    packed,
)

Progress = Callable[[SearchProgress], None]


class Search:
    """A search as it runs: what is known, what is missing, what it cost.

    A database in shards is as many places to search, on whatever nodes hold them.
    """

    def __init__(
        self,
        sequences: Iterable[str],
        databases: Sequence[Database],
        config: SearchConfig,
        options: SearchOptions,
        cache: SearchCache,
        progress: Progress | None = None,
        executor: Executor | None = None,
        rest: float = REST,
    ) -> None:
        self.databases, self.config, self.options = databases, config, options
        self.cache, self.progress = cache, progress
        self.sequences = list(dict.fromkeys(sequence.upper() for sequence in sequences))
        self.infos: list[DatabaseInfo] = []
        self.spent: Counter[int] = Counter()  # worker seconds by database
        self.searched: Counter[int] = Counter()
        self.hits: Counter[int] = Counter()
        self.began = time.monotonic()
        self.dispatch = Dispatch(options, executor, rest)
        self._places = [part for database in databases for part in database.parts()]
        self._whole = [n for n, database in enumerate(databases) for _ in database.parts()]
        self._place_infos: list[DatabaseInfo] = []
        self._starts: dict[int, dict[str, CachedResult]] = {}
        self._last_report = 0.0
        self._cost = [0, 0, 0]  # of this stage: in all, done, in this run

    def close(self) -> None:
        """Stop the workers, if it started some."""
        self.dispatch.close()

    def known(self) -> dict[tuple[str, int], CachedResult] | None:
        """All results by sequence and database, if there is nothing left to search.

        Raises:
            InputError: a database is not here.
        """
        self.infos = [look_at(database, self.config) for database in self.databases]
        found: dict[tuple[str, int], CachedResult] = {}
        for numbers in self._stages():
            keys = self._keys(numbers, found)
            there = self.cache.find(keys.values())
            found |= {where: there[key] for where, key in keys.items() if key in there}
        return found if len(found) == len(self.sequences) * len(self.databases) else None

    def run(self) -> tuple[dict[tuple[str, int], CachedResult], dict[str, dict[str, Any]]]:
        """Results by sequence and database, and the sequences that have not all of them."""
        self._place_infos = [self._look(place) for place in range(len(self._places))]
        self.infos = [
            joined(database, [self._place_infos[place] for place in self._places_of(number)])
            for number, database in enumerate(self.databases)
        ]
        found: dict[tuple[str, int], CachedResult] = {}
        broken: dict[str, dict[str, Any]] = {}
        for numbers in self._stages():
            self._search_stage(self._keys(numbers, found), found, broken)
        return found, broken

    @property
    def _first(self) -> int:
        return next(i for i, db in enumerate(self.databases) if not db.is_template)

    def _stages(self) -> tuple[list[int], list[int]]:
        """Databases that are searched at once, and those whose searches start from what the
        first one found.

        Raises:
            InputError: one of templates could only start from a profile, and there is none.
        """
        first = self.infos[self._first].kind
        expands = self.config.expansion in ("filter", "nofilter") and first == "mmseqs"
        stages: tuple[list[int], list[int]] = [], []
        for number, (database, info) in enumerate(zip(self.databases, self.infos, strict=True)):
            if database.is_template and info.kind == "mmseqs" and not expands:
                raise InputError(
                    "templates in a database of mmseqs are searched with the profile of a first "
                    "database of mmseqs, as in the recipe `colabfold`",
                    path=database.path,
                )
            is_next = expands and info.kind == "mmseqs" and number != self._first
            stages[database.is_template or is_next].append(number)
        self._starts = {number: {} for number in stages[1]}
        return stages

    def _keys(
        self, numbers: Sequence[int], found: dict[tuple[str, int], CachedResult]
    ) -> dict[tuple[str, int], str]:
        """The names of results of some databases, as far as their searches can start."""
        keys: dict[tuple[str, int], str] = {}
        for number in numbers:
            if number in self._starts:
                starts = self._starts[number] = self._starts_of(number, found)
                keys |= {(s, number): self.key(number, s, start) for s, start in starts.items()}
            else:
                keys |= {(s, number): self.key(number, s) for s in self.sequences}
        return keys

    def _starts_of(
        self, number: int, found: dict[tuple[str, int], CachedResult]
    ) -> dict[str, CachedResult]:
        """What the search of each sequence in a later database starts from."""
        known = {s: found[s, self._first] for s in self.sequences if (s, self._first) in found}
        if self.infos[number].kind != "mmseqs":
            return known
        keys = {s: profile_key(self.key(self._first, s)) for s in known}
        there = self.cache.find(keys.values())
        return {s: there[key] for s, key in keys.items() if key in there}

    def key(self, number: int, sequence: str, start: CachedResult | None = None) -> str:
        """The name of a result in the cache."""
        database, info = self.databases[number], self.infos[number]
        parts: dict[str, Any] = {
            "database": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, database.is_template),
        }
        if database.is_template or start:
            parts["start"] = start.sha256 if start else ""
        if not database.is_template:
            parts["rows"] = self.config.rows_of(database)
        return result_key("templates" if database.is_template else "msa", sequence, parts)

    def _shard_key(self, place: int, sequence: str) -> str:
        """The name of what a shard of a database gives, which depends on the size of all."""
        info, whole = self._place_infos[place], self.infos[self._whole[place]]
        parts = {
            "database": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, False),
            "num_targets": whole.num_sequences,
        }
        return result_key("shard", sequence, parts)

    def _places_of(self, number: int) -> list[int]:
        return [place for place, whole in enumerate(self._whole) if whole == number]

    def _look(self, place: int) -> DatabaseInfo:
        """What is at a place: looked at here, or where it is."""
        database = self._places[place]
        if database.kind is not None:
            return look_at(database, self.config)
        if not self.options.ray_address:
            kind_of(database)  # which raises
        schedule = Schedule(self._places, [SearchUnit(f"look-{place}", place, "part", (), 0)])
        for ended in self.dispatch.outcomes(schedule, self._task):
            if ended is None:
                continue
            outcome = ended[1]
            if isinstance(outcome, SearchResult) and outcome.info:
                return outcome.info
            raise getattr(outcome, "error", JobError(f"cannot be looked at: {outcome}"))
        raise AssertionError("unreachable")

    def _search_stage(
        self,
        keys: dict[tuple[str, int], str],
        found: dict[tuple[str, int], CachedResult],
        broken: dict[str, dict[str, Any]],
    ) -> None:
        """Have every key in the cache; what cannot be is `broken`."""
        there = self.cache.find(keys.values())
        wanted: dict[int, dict[str, str]] = defaultdict(dict)  # keys and sequences by place
        for (sequence, number), key in keys.items():
            if key in there:
                self.hits[number] += 1
            elif self.databases[number].num_shards:
                shard_keys = {p: self._shard_key(p, sequence) for p in self._places_of(number)}
                known = self.cache.find(shard_keys.values())
                for place, shard_key in shard_keys.items():
                    if shard_key not in known:
                        wanted[place][shard_key] = sequence
            else:
                wanted[self._places_of(number)[0]][key] = sequence
        reasons = self._search(wanted) if wanted else {}
        self._join({where: key for where, key in keys.items() if key not in there}, reasons)
        there = self.cache.find(keys.values())
        for (sequence, number), key in keys.items():
            if key in there:
                found[sequence, number] = there[key]
            else:
                broken[sequence] = {**reasons[key], "database": self.databases[number].name}

    def _search(self, wanted: dict[int, dict[str, str]]) -> dict[str, Why]:
        schedule = Schedule(self._places)
        slots = self.dispatch.slots()
        for place, missing in wanted.items():
            queries = [Query(key, sequence) for key, sequence in missing.items()]
            for unit in make_units(place, self._place_infos[place].kind, queries, slots):
                schedule.put(unit)
        self._cost = [sum(u.cost for units in schedule.waiting for u in units), 0, 0]
        reasons: dict[str, Why] = {}
        for ended in self.dispatch.work(schedule, self._task):
            if ended is None:
                self._tell()
                continue
            if ended.result is not None:
                self._keep(ended.unit, ended.result)
            reasons |= ended.failed
            self._tell(ended.done)
        return reasons

    def _join(self, keys: dict[tuple[str, int], str], reasons: dict[str, Why]) -> None:
        """Results of sharded databases from those of their shards; `reasons` why some have none."""
        for (sequence, number), key in keys.items():
            if not self.databases[number].num_shards:
                continue
            shard_keys = [self._shard_key(place, sequence) for place in self._places_of(number)]
            there = self.cache.find(shard_keys)
            self.searched[number] += 1
            if missing := next((one for one in shard_keys if one not in there), ""):
                reasons[key] = reasons[missing]
                continue
            texts = [self.cache.read(there[one]) for one in shard_keys]
            data = join_shards(sequence, texts, self.config.rows_of(self.databases[number]))
            seconds = sum(there[one].seconds for one in shard_keys)
            self.cache.put([packed(key, data, seconds)], ".a3m", self._provenance(number))

    def _task(self, unit: SearchUnit) -> SearchTask:
        """What a worker needs to know of a unit."""
        queries, database = unit.queries, self._places[unit.database]
        if starts := self._starts.get(self._whole[unit.database]):
            queries = tuple(
                dataclasses.replace(q, start=self.cache.read(starts[q.sequence])) for q in queries
            )
        whole = self.infos[self._whole[unit.database]] if unit.queries else None
        return SearchTask(
            unit_id=unit.unit_id,
            database=database,
            config=self.config,
            queries=queries,
            info=self._place_infos[unit.database] if unit.queries else None,
            num_targets=whole.num_sequences if whole else 0,
            deadline=self.options.deadline,
            scratch=self.options.scratch,
            stage=self.options.stage,
        )

    def _keep(self, unit: SearchUnit, result: SearchResult) -> None:
        """Put the results of a unit into the cache, and its cost into the account."""
        number, info = self._whole[unit.database], self._place_infos[unit.database]
        suffix = suffix_of(info.kind, self.databases[number].is_template)
        self.cache.put(result.made, suffix, self._provenance(number))
        self.spent[number] += result.seconds  # type: ignore[assignment]
        if not self.databases[number].num_shards:
            self.searched[number] += len(unit.queries)
        self._cost[2] += unit.cost

    def _tell(self, done: int = 0) -> None:
        """Say how far it is, after each unit and about twice a second."""
        self._cost[1] += done
        now = time.monotonic()
        if self.progress is None or not (done or now - self._last_report > TICK):
            return
        self._last_report = now
        total, so_far, here = self._cost
        pace = here / max(now - self.began, 1e-9)
        left = (total - so_far) / pace if pace else None
        searched = sum(self.searched.values())
        self.progress(SearchProgress(searched, sum(self.hits.values()), total, so_far, left))

    def _provenance(self, number: int) -> dict[str, Any]:
        database, info = self.databases[number], self.infos[number]
        return {
            "database": database.name,
            "path": database.path,
            "digest": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, database.is_template),
        }

    def report(
        self,
        found: dict[tuple[str, int], CachedResult],
        broken: list[dict[str, Any]],
        num_chains: int,
    ) -> SearchReport:
        """What was done, at what cost."""
        lines = [
            f"{hashlib.sha256(sequence.encode()).hexdigest()} {number} {result.sha256}"
            for (sequence, number), result in found.items()
        ]
        databases = [
            {
                "name": database.name,
                "path": database.path,
                **dataclasses.asdict(info),
                "settings": self.config.result_settings(info.kind, database.is_template),
                "rows": self.config.rows_of(database),
                "searched": self.searched[number],
                "cache_hits": self.hits[number],
                "worker_seconds": round(self.spent[number], 3),
                "worker_hours_per_1000": round(
                    self.spent[number] / max(self.searched[number], 1) / 3.6, 4
                ),
            }
            for number, (database, info) in enumerate(zip(self.databases, self.infos, strict=True))
        ]
        return SearchReport(
            digest=hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest(),
            num_chains=num_chains,
            num_sequences=len(self.sequences),
            num_broken=len(broken),
            searched=sum(self.searched.values()),
            cache_hits=sum(self.hits.values()),
            lost_workers=self.dispatch.lost_workers,
            seconds=round(time.monotonic() - self.began, 3),
            databases=tuple(databases),
            broken=tuple(broken),
        )

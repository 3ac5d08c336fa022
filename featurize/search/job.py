"""A search of many sequences in many databases: each once, whatever is killed.

What is to be done is what the cache does not have; what is done is in the cache. So a
search has no state of its own to lose: run again, it continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from evofeed.errors import InputError, JobError
from evofeed.featurize.job.executors import ExecutorGone
from evofeed.featurize.job.worker import UnitLost
from evofeed.featurize.search.cache import Found, SearchCache, result_key
from evofeed.featurize.search.config import Database, SearchConfig
from evofeed.featurize.search.executors import SearchExecutor, open_executor
from evofeed.featurize.search.folder import INDEX, alone, by_chain, unusable, write_index
from evofeed.featurize.search.options import SearchOptions, SearchProgress, SearchReport
from evofeed.featurize.search.plan import Schedule, Unit, cost_of, cut_up, make_units
from evofeed.featurize.search.searchers import Query, kind_of, suffix_of
from evofeed.featurize.search.work import DatabaseInfo, SearchResult, SearchTask, look_at
from evofeed.featurize.sources import ChainSource
from evofeed.files import write_atomic

_TICK: Final = 0.5
_STRIKES: Final = 3
"""Times a sequence may fail in a database; each time elsewhere if there is an elsewhere."""
_LOST_TOGETHER: Final = 3
"""Times a unit may lose its worker, nobody knows over which sequence, before it is cut up."""
_PARTS: Final = 16
_MAX_LOST: Final = 6
"""Times a unit may lose its worker with no sequence to blame."""
_NOWHERE: Final = 60.0
"""Seconds to wait for a node that holds a database."""
_REST: Final = 6.0
"""Seconds until Ray says that a node has died, and some."""
_RESTARTS: Final = 3
REPORT: Final = "report.json"

Progress = Callable[[SearchProgress], None]


def run_search(
    chains: Sequence[ChainSource],
    out_dir: str,
    databases: Sequence[Database],
    *,
    config: SearchConfig | None = None,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    problems: Sequence[InputError] = (),
) -> SearchReport:
    """Search the sequences of chains in databases; the report, with what was found.

    Run it again after a crash or a repair: what was found stays found, the rest is searched.

    Args:
        chains: with `sequence` and `description`; equal sequences are searched once.
        out_dir: gets `search.index`, which `discover` reads, the report and, unless the
            options name another place, the cache.
        databases: each once; those for templates start from the first other's alignment.
        config: settings of the searches.
        options: where and how many at once.
        progress: called after each unit and about twice a second.
        problems: records that are no chains, for the report.

    Raises:
        InputError: no chain, two databases of one name, or one that is nowhere.
        JobError: the disk is full, a database changed, or no node holds one.
    """
    config, options = config or SearchConfig(), options or SearchOptions()
    if not chains:
        raise InputError("there is no sequence to search")
    check_databases(databases)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    with alone(out), contextlib.ExitStack() as stack:
        cache = SearchCache(options.cache_dir or out / "cache")
        stack.callback(cache.close)
        sequences = (chain.sequence for chain in chains)
        search = Search(sequences, databases, config, options, cache, progress)
        stack.callback(search.close)
        found, broken = search.run()
        problem_entries = [*map(unusable, problems), *by_chain(chains, broken)]
        report = search.report(found, problem_entries, len(chains) + len(problems))
        write_index(out / INDEX, chains, databases, search.infos, found, broken)
        write_atomic(out / REPORT, json.dumps(report.to_dict(), indent=1).encode())
        return report


def check_databases(databases: Sequence[Database]) -> None:
    """Nothing, if every database has a name of its own and something can be found in them.

    Raises:
        InputError: two have one name, or there is none for alignments, or several for templates.
    """
    if all(database.is_template for database in databases):
        raise InputError("there is no database to search: give one with --db")
    names: dict[str, Database] = {}
    for database in databases:
        if database.name in names:
            raise InputError(
                f"called {database.name!r} as {names[database.name].path} is: name it, "
                f"--db OTHER={database.path}",
                path=database.path,
            )
        names[database.name] = database
    templates = [database for database in databases if database.is_template]
    if len(templates) > 1:
        raise InputError("a second template database: one is searched", path=templates[1].path)


class Search:
    """A search as it runs: what is known, what is missing, what it cost."""

    def __init__(
        self,
        sequences: Iterable[str],
        databases: Sequence[Database],
        config: SearchConfig,
        options: SearchOptions,
        cache: SearchCache,
        progress: Progress | None = None,
        executor: SearchExecutor | None = None,
        rest: float = _REST,
    ) -> None:
        self.databases, self.config, self.options = databases, config, options
        self.cache, self.progress = cache, progress
        self.sequences = list(dict.fromkeys(sequence.upper() for sequence in sequences))
        self.infos: list[DatabaseInfo] = []
        self.spent: Counter[int] = Counter()  # worker seconds by database
        self.searched: Counter[int] = Counter()
        self.hits: Counter[int] = Counter()
        self.lost_workers = 0
        self.began = time.monotonic()
        self._executor = executor
        self._stack = contextlib.ExitStack()
        self._last_report = 0.0
        self._restarts = 0
        self._rest = rest
        self._losses: Counter[str] = Counter()  # by unit, with nobody to blame
        self._cost = [0, 0, 0]  # of this stage: in all, done, in this run

    def close(self) -> None:
        """Stop the workers, if it started some."""
        self._stack.close()

    def known(self) -> dict[tuple[str, int], Found] | None:
        """All results by sequence and database, if there is nothing left to search.

        Raises:
            InputError: a database is not here.
        """
        self.infos = [look_at(database, self.config) for database in self.databases]
        plain = [i for i, db in enumerate(self.databases) if not db.is_template]
        keys = {(s, i): self.key(i, s) for i in plain for s in self.sequences}
        there = self.cache.find(keys.values())
        if len(there) < len(set(keys.values())):
            return None
        found = {where: there[key] for where, key in keys.items()}
        for number in set(range(len(self.databases))) - set(plain):
            keys = {(s, number): self.key(number, s, found[s, plain[0]]) for s in self.sequences}
            there = self.cache.find(keys.values())
            if len(there) < len(set(keys.values())):
                return None
            found |= {where: there[key] for where, key in keys.items()}
        return found

    @property
    def executor(self) -> SearchExecutor:
        """Started when there is something to search: what the cache has needs no workers."""
        if self._executor is None:
            self._executor = self._stack.enter_context(open_executor(self.options))
        return self._executor

    def run(self) -> tuple[dict[tuple[str, int], Found], dict[str, dict[str, Any]]]:
        """Results by sequence and database, and the sequences that have not all of them."""
        self.infos = [self._look(number) for number in range(len(self.databases))]
        found: dict[tuple[str, int], Found] = {}
        broken: dict[str, dict[str, Any]] = {}
        first = next(i for i, db in enumerate(self.databases) if not db.is_template)
        plain = [i for i, db in enumerate(self.databases) if not db.is_template]
        keys = {(s, i): self.key(i, s) for i in plain for s in self.sequences}
        self._stage(keys, {}, found, broken)
        templates = [i for i, db in enumerate(self.databases) if db.is_template]
        starts = {s: found[s, first] for s in self.sequences if (s, first) in found}
        keys = {(s, i): self.key(i, s, start) for i in templates for s, start in starts.items()}
        self._stage(keys, starts, found, broken)
        return found, broken

    def key(self, number: int, sequence: str, start: Found | None = None) -> str:
        """The name of a result in the cache."""
        database, info = self.databases[number], self.infos[number]
        parts: dict[str, Any] = {
            "database": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, database.is_template),
        }
        if database.is_template:
            parts["start"] = start.sha256 if start else ""
        else:
            parts["rows"] = self.config.rows_of(database)
        return result_key("templates" if database.is_template else "msa", sequence, parts)

    def _look(self, number: int) -> DatabaseInfo:
        """What a database is: looked at here, or where it is."""
        database = self.databases[number]
        if database.kind is not None:
            return look_at(database, self.config)
        if not self.options.ray_address:
            kind_of(database)  # which raises
        schedule = Schedule(self.databases, [Unit(f"look-{number}", number, (), 0)])
        for outcome in self._outcomes(schedule):
            if isinstance(outcome, SearchResult) and outcome.info:
                return outcome.info
            raise getattr(outcome, "error", JobError(f"cannot be looked at: {outcome}"))
        raise AssertionError("unreachable")

    def _stage(
        self,
        keys: dict[tuple[str, int], str],
        starts: dict[str, Found],
        found: dict[tuple[str, int], Found],
        broken: dict[str, dict[str, Any]],
    ) -> None:
        """Have every key in the cache; what cannot be is `broken`."""
        there = self.cache.find(keys.values())
        wanted: dict[int, dict[str, str]] = defaultdict(dict)
        for (sequence, number), key in keys.items():
            if key in there:
                self.hits[number] += 1
            else:
                wanted[number][key] = sequence
        schedule = Schedule(self.databases)
        slots = self.executor.slots() if wanted else 1
        for number, missing in wanted.items():
            queries = [Query(key, sequence) for key, sequence in missing.items()]
            for unit in make_units(number, self.infos[number].kind, queries, slots):
                schedule.put(unit)
        self._cost = [sum(u.cost for units in schedule.waiting for u in units), 0, 0]
        reasons = self._work(schedule, starts) if wanted else {}
        there |= self.cache.find(key for missing in wanted.values() for key in missing)
        for (sequence, number), key in keys.items():
            if key in there:
                found[sequence, number] = there[key]
            else:
                broken[sequence] = {**reasons[key], "database": self.databases[number].name}

    def _work(self, schedule: Schedule, starts: dict[str, Found]) -> dict[str, dict[str, Any]]:
        """Do all units; why a key has no result."""
        strikes: Counter[str] = Counter()
        reasons: dict[str, dict[str, Any]] = {}
        for unit, outcome, node_id in self._units(schedule, starts):
            again = list(unit.queries)
            if isinstance(outcome, SearchResult):
                self._keep(unit, outcome)
                reasons |= outcome.failures
                again = [q for q in unit.queries if q.key in outcome.failures]
                blamed = [q.key for q in again]
            else:
                self.lost_workers += 1
                blamed = self._blamed(unit, outcome)
                why = {"type": "WorkerKilled", "message": f"killed its worker ({outcome.cause})"}
                reasons |= dict.fromkeys(blamed, why)
            name = self.databases[unit.database].name
            for key in blamed:
                strikes[key] += 1
                self.cache.fail(key, name, strikes[key], reasons[key])
            left = [q for q in again if strikes[q.key] < _STRIKES]
            if left == list(unit.queries):
                is_cut = not blamed and self._losses[unit.unit_id] == _LOST_TOGETHER
                units = cut_up(unit, _PARTS) if is_cut else [unit]
                for one in units:
                    schedule.put(dataclasses.replace(one, avoid=node_id))
                continue
            kind = self.infos[unit.database].kind
            for more in make_units(unit.database, kind, left, self.executor.slots(), node_id):
                schedule.put(more)
            self._cost[1] += unit.cost - sum(map(cost_of, left))
            self._tell(force=True)
        return reasons

    def _blamed(self, unit: Unit, lost: UnitLost) -> list[str]:
        """Keys of the sequences that a lost worker counts against: one or none.

        Raises:
            JobError: the unit was lost too often, and none of its sequences is to blame.
        """
        if lost.chain_id:
            return [lost.chain_id]
        self._losses[unit.unit_id] += 1
        count = self._losses[unit.unit_id]
        if lost.chain_id is None and len(unit.queries) == 1 and count > _LOST_TOGETHER:
            return [unit.queries[0].key]
        if count >= _MAX_LOST:
            raise JobError(
                f"{count} workers were lost over the same few sequences, and none of these is to "
                f"blame ({lost.cause}); what was found is kept: see to the machine, its memory "
                "for one, and run it again"
            )
        return []

    def _keep(self, unit: Unit, result: SearchResult) -> None:
        database, info = self.databases[unit.database], self.infos[unit.database]
        provenance = {
            "database": database.name,
            "path": database.path,
            "digest": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, database.is_template),
        }
        suffix = suffix_of(info.kind, database.is_template)
        self.cache.put(result.made, suffix, provenance)
        self.spent[unit.database] += result.seconds  # type: ignore[assignment]
        self.searched[unit.database] += len(result.made) + len(result.failures)
        self._cost[2] += unit.cost

    def _units(
        self, schedule: Schedule, starts: dict[str, Found]
    ) -> Iterator[tuple[Unit, Any, str]]:
        """Units as they end, with their outcome and the node they were on."""
        flying: dict[str, tuple[Unit, str]] = {}
        resting: dict[str, float] = {}  # nodes that lost a unit: Ray may not know yet that one died
        ended: list[tuple[Unit, Any, str]] = []
        orphaned = time.monotonic()
        while schedule or flying or ended:
            nodes = self.executor.nodes()
            for node in nodes:
                if resting.get(node.node_id, 0.0) > time.monotonic():
                    continue
                at_work = sum(node_id == node.node_id for _, node_id in flying.values())
                for _ in range(node.slots - at_work):
                    unit = schedule.take(node, nodes)
                    if unit is None:
                        break
                    self.executor.submit(self._task(unit, starts), node)
                    flying[unit.unit_id] = unit, node.node_id
            if flying:
                orphaned = time.monotonic()
            elif schedule and time.monotonic() - orphaned > _NOWHERE:
                name = (schedule.orphans(nodes) or ["?"])[0]
                raise JobError(
                    f"no node holds the database {name!r}: start one with `ray start --address=... "
                    f"--resources='{{\"db:{name}\": 1}}'`, and run it again"
                )
            yield from ended  # kept while the next units are at work
            ended = []
            failed: list[Exception] = []
            for outcome in self._wait(schedule, flying) if flying or schedule else ():
                unit, node_id = flying.pop(outcome.unit_id)
                if getattr(outcome, "chain_id", "") is None:
                    resting[node_id] = time.monotonic() + self._rest
                if (error := getattr(outcome, "error", None)) is not None:
                    failed.append(error)
                else:
                    ended.append((unit, outcome, node_id))
            if failed:
                yield from ended
                raise failed[0]
            self._tell()

    def _wait(self, schedule: Schedule, flying: dict[str, tuple[Unit, str]]) -> list[Any]:
        """Outcomes that are there. Where a private Ray died, a new one does what was in work."""
        try:
            return self.executor.wait(_TICK)
        except ExecutorGone as gone:
            self._restarts += 1
            self._losses.clear()  # earlier ones may have been its fault
            if not gone.again or self._restarts > _RESTARTS:
                raise
            for unit, _ in flying.values():
                schedule.put(unit)
            flying.clear()
            self._stack.close()
            self._executor = None
            return []

    def _outcomes(self, schedule: Schedule) -> Iterator[Any]:
        return (outcome for _, outcome, _ in self._units(schedule, {}))

    def _task(self, unit: Unit, starts: dict[str, Found]) -> SearchTask:
        queries = unit.queries
        if self.databases[unit.database].is_template:
            queries = tuple(
                dataclasses.replace(q, alignment=self.cache.read(starts[q.sequence]))
                for q in queries
            )
        return SearchTask(
            unit_id=unit.unit_id,
            database=self.databases[unit.database],
            config=self.config,
            queries=queries,
            info=self.infos[unit.database] if unit.queries else None,
            deadline=self.options.deadline,
            scratch=self.options.scratch,
            stage=self.options.stage,
        )

    def _tell(self, force: bool = False) -> None:
        now = time.monotonic()
        if self.progress is None or not (force or now - self._last_report > _TICK):
            return
        self._last_report = now
        total, done, here = self._cost
        pace = here / max(now - self.began, 1e-9)
        left = (total - done) / pace if pace else None
        searched = sum(self.searched.values())
        self.progress(SearchProgress(searched, sum(self.hits.values()), total, done, left))

    def report(
        self,
        found: dict[tuple[str, int], Found],
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
            lost_workers=self.lost_workers,
            seconds=round(time.monotonic() - self.began, 3),
            databases=tuple(databases),
            broken=tuple(broken),
        )

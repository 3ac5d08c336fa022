"""A running search: results in the cache, units to search, and their cost."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

from evofeed.base.errors import InputError, JobError
from evofeed.featurize.formats.fasta import is_rna
from evofeed.featurize.job.dispatch import TICK, Dispatch, open_executor
from evofeed.featurize.job.executors import Executor
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.units import Plan, Unit
from evofeed.featurize.job.work import UnitResult
from evofeed.featurize.search.aligned_text import join_alignments
from evofeed.featurize.search.cache import CachedResult, SearchCache, result_key
from evofeed.featurize.search.config import (
    Database,
    Kind,
    SearchConfig,
    SearchOptions,
    SearchProgress,
)
from evofeed.featurize.search.searchers import Query, kind_of, profile_key, suffix_of
from evofeed.featurize.search.work import DatabaseInfo, SearchResult, SearchTask, inspect_database

_STRIKES: Final = 3
"""Times a program may fail on a sequence."""
_GRACE: Final = 60.0
"""Seconds after a program's deadline at which its worker is killed."""

_CALL_COST: Final = 60
"""Cost of a search, in residues, in addition to the length of its sequence."""
_SHARES: Final = 6
"""Units per slot: few enough to cost nothing, enough that no slot waits long for the last."""
_MAX_SEQUENCES: Final[dict[Kind, int]] = {"fasta": 16, "rna": 16, "hh": 4, "mmseqs": 4096}
"""Limit of sequences of a unit, which a killed worker loses. mmseqs has a high cost per call."""
_NO_DATABASE: Final = {
    "type": "InputError",
    "message": "no database of its kind of molecule is searched",
}

Progress = Callable[[SearchProgress], None]
Results = dict[tuple[str, int], CachedResult]
"""Results by sequence and database number."""
Keys = dict[tuple[str, int], str]
"""Keys of results in the cache by sequence and database number."""
Failures = dict[str, dict[str, Any]]
"""Errors by sequence or key: `type message`."""
Missing = dict[str, tuple[int, Query]]
"""Database number and query by key, of results that the cache lacks."""
Starts = dict[str, tuple[CachedResult, ...]]
"""Results that the search of a sequence starts from, by sequence."""


class Search(Dispatch):
    """A search of sequences in databases: what the cache lacks is searched by an executor."""

    def __init__(
        self,
        sequences: Iterable[str],
        databases: Sequence[Database],
        config: SearchConfig,
        options: SearchOptions,
        cache: SearchCache,
        progress: Progress | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.databases, self.config, self.options = databases, config, options
        self.cache, self.progress = cache, progress
        self.sequences = list(dict.fromkeys(sequence.upper() for sequence in sequences))
        self.infos: list[DatabaseInfo] = []
        self.spent: Counter[int] = Counter()  # worker seconds by database
        self.searched: Counter[int] = Counter()
        self.hits: Counter[int] = Counter()
        self.began = time.monotonic()
        self._executor, self.lease = executor, None
        self._stack = contextlib.ExitStack()
        self._starts: dict[int, Starts] = {}
        self._missing: Missing = {}  # of this stage
        self._database_of: dict[str, int] = {}  # number of the database, by unit
        self._cost = self._cost_done = 0

    def close(self) -> None:
        """Stop the executor, if the search started one."""
        self._stack.close()

    @property
    def executor(self) -> Executor:
        """The executor, started on first use: a search that is cached needs no workers."""
        if self._executor is None:
            self._executor = open_executor(self.options, _GRACE)
            self._stack.callback(self._executor.close)
        return self._executor

    def cached_results(self) -> Results | None:
        """All results by sequence and database if the cache has all of them, else None.

        Raises:
            InputError: a database is not on this machine.
        """
        self.infos = [inspect_database(database, self.config) for database in self.databases]
        results: Results = {}
        for numbers in self._stages():
            keys = self._keys(numbers, results)
            cached = self.cache.find(keys.values())
            results |= {pair: cached[key] for pair, key in keys.items() if key in cached}
        total = sum(len(self._queries(number)) for number in range(len(self.databases)))
        return results if len(results) == total else None

    def run(self) -> tuple[Results, Failures]:
        """Results by sequence and database, and errors of the sequences that lack some."""
        self.infos = [self._inspect(number) for number in range(len(self.databases))]
        results: Results = {}
        queries = {s for number in range(len(self.databases)) for s in self._queries(number)}
        broken = {s: {**_NO_DATABASE} for s in self.sequences if s not in queries}
        for numbers in self._stages():
            self._search_stage(self._keys(numbers, results), results, broken)
        return results, broken

    @property
    def _first(self) -> int:
        plain = (i for i, db in enumerate(self.databases) if not db.is_template)
        return min(plain, key=lambda number: self.databases[number].is_rna)

    def is_rna(self, sequence: str) -> bool:
        """True if a sequence is RNA, by its letters, and some database is of RNA."""
        return is_rna(sequence) and any(database.is_rna for database in self.databases)

    def _queries(self, number: int) -> list[str]:
        """The sequences that are searched in a database: RNA in databases of RNA."""
        is_rna = self.databases[number].is_rna
        return [s for s in self.sequences if self.is_rna(s) == is_rna]

    def _stages(self) -> tuple[list[int], list[int]]:
        """Numbers of the databases searched first, and of those whose searches start from the
        results of the first ones.

        Raises:
            InputError: a template database of mmseqs needs a profile, and there is none.
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

    def _keys(self, numbers: Sequence[int], results: Results) -> Keys:
        """The keys of results of some databases, as far as their searches can start."""
        keys: Keys = {}
        for number in numbers:
            if number in self._starts:
                starts = self._starts[number] = self._starts_of(number, results)
                keys |= {(s, number): self.key(number, s, start) for s, start in starts.items()}
            else:
                keys |= {(s, number): self.key(number, s) for s in self._queries(number)}
        return keys

    def _starts_of(self, number: int, results: Results) -> Starts:
        """Results that the searches in a database of the second stage start from, by sequence."""
        if self.infos[number].kind == "mmseqs":
            keys = {s: profile_key(self.key(self._first, s)) for s in self._queries(number)}
            cached = self.cache.find(keys.values())
            return {s: (cached[key],) for s, key in keys.items() if key in cached}
        order = {database.name: i for i, database in enumerate(self.databases)}
        numbers = [order[name] for name in self.config.template_profile if name in order]
        numbers = numbers or [self._first]
        return {
            s: tuple(results[s, i] for i in numbers)
            for s in self._queries(number)
            if all((s, i) in results for i in numbers)
        }

    def key(self, number: int, sequence: str, start: tuple[CachedResult, ...] = ()) -> str:
        """The key of a result in the cache."""
        database, info = self.databases[number], self.infos[number]
        parts: dict[str, Any] = {
            "database": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, database.is_template),
        }
        if database.is_template or start:
            parts["start"] = " ".join(result.sha256 for result in start)
        if not database.is_template:
            parts["rows"] = self.config.rows_of(database)
        return result_key("templates" if database.is_template else "msa", sequence, parts)

    def _inspect(self, number: int) -> DatabaseInfo:
        """Inspect a database on this machine, or on a node that holds it."""
        database = self.databases[number]
        if database.kind is not None:
            return inspect_database(database, self.config)
        if not self.options.ray_address:
            kind_of(database)  # which raises
        task = SearchTask(unit_id="look", database=database, config=self.config)
        self.executor.submit(task, self.options.cores, database.resource)
        while not (outcomes := self.executor.wait(TICK)):
            pass
        outcome = outcomes[0]
        if isinstance(outcome, SearchResult) and outcome.info:
            return outcome.info
        raise getattr(outcome, "error", JobError(f"cannot be inspected: {outcome}"))

    def _search_stage(self, keys: Keys, results: Results, broken: Failures) -> None:
        """Search what the cache lacks; add to `results`, and to `broken` where that failed."""
        cached = self.cache.find(keys.values())
        missing: Missing = {}
        for (sequence, number), key in keys.items():
            if key in cached:
                self.hits[number] += 1
            else:
                missing[key] = number, Query(key, sequence)
        job_id = hashlib.sha256("\n".join(keys.values()).encode()).hexdigest()
        errors = self._search(job_id, missing) if missing else {}
        cached = self.cache.find(keys.values())
        for (sequence, number), key in keys.items():
            if key in cached:
                results[sequence, number] = cached[key]
            else:
                broken[sequence] = {**errors[key], "database": self.databases[number].name}

    def _search(self, job_id: str, missing: Missing) -> Failures:
        """Search missing results into the cache; errors by key of those that failed."""
        queries: dict[int, list[Query]] = defaultdict(list)
        for number, query in missing.values():
            queries[number].append(query)
        slots = self.executor.slots(self.options.cores)
        units: list[Unit] = []
        self._missing, self._database_of = missing, {}
        for number, of_database in queries.items():
            added = _units_of(number, self.infos[number].kind, of_database, slots)
            self._database_of |= {unit.unit_id: number for unit in added}
            units += added
        self._cost, self._cost_done = sum(unit.cost for unit in units), 0
        with closing(Ledger("sqlite:///:memory:")) as ledger:  # the cache keeps finished work
            job = {"input_uri": "", "dataset_uri": "", "arguments": {}}
            ledger.begin(job_id, Plan(job_id, tuple(units), {}, {}), job, None)
            self.attach(ledger, job_id, units, self.options)
            self.run_units_on(self.executor)
            return {
                chain["chain_id"]: {"type": chain["type"], "message": chain["message"]}
                for chain in ledger.chains(job_id)
            }

    def remaining(self, unit_id: str) -> tuple[str, ...]:
        """Keys of a unit to search next: those that are still missing."""
        return tuple(key for key in super().remaining(unit_id) if key in self._missing)

    def resource(self, unit_id: str) -> str:
        """Ray resource of the nodes with the unit's database."""
        return self.databases[self._database_of[unit_id]].resource

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> SearchTask:
        """The task to search these queries of a unit."""
        number = self._database_of[unit_id]
        queries = [self._missing[key][1] for key in item_ids]
        if starts := self._starts.get(number):
            texts = (list(map(self.cache.read, starts[q.sequence])) for q in queries)
            queries = [
                dataclasses.replace(query, start=join_alignments(alignments))
                for query, alignments in zip(queries, texts, strict=True)
            ]
        return SearchTask(
            unit_id=unit_id,
            database=self.databases[number],
            config=self.config,
            queries=tuple(queries),
            info=self.infos[number],
            deadline=self.options.deadline,
            scratch=self.options.scratch,
        )

    def record_output(self, output: SearchResult, item_ids: Sequence[str], is_trial: bool) -> bool:
        """Store results in the cache, record failures and finished units in the ledger."""
        unit, number = self.units[output.unit_id], self._database_of[output.unit_id]
        suffix = suffix_of(self.infos[number].kind, self.databases[number].is_template)
        self.cache.put(output.results, suffix, self._provenance(number))
        for result in output.results:
            self._missing.pop(result.key, None)
        self.spent[number] += output.seconds  # type: ignore[assignment]
        self.searched[number] += len(item_ids)
        for key, error in output.failures.items():
            failure = {**error, "chain_id": key, "path": None, "line": None}
            self.ledger.strike(self.job_id, unit.unit_id, failure, _STRIKES)
        if self.remaining(unit.unit_id):
            return True
        empty: dict[str, Any] = {"shard": None, "failures": (), "notes": {}}
        done = UnitResult(unit_id=unit.unit_id, num_chains=len(unit.chain_ids), **empty)
        self.ledger.finish(self.job_id, done)
        self._cost_done += unit.cost
        return False

    def current_progress(self) -> SearchProgress:
        """Progress of this stage."""
        searched, hits = sum(self.searched.values()), sum(self.hits.values())
        return SearchProgress(searched, hits, self._cost_done / max(self._cost, 1))

    def _provenance(self, number: int) -> dict[str, Any]:
        database, info = self.databases[number], self.infos[number]
        return {
            "database": database.name,
            "path": database.path,
            "digest": info.digest,
            "program": info.program,
            "settings": self.config.result_settings(info.kind, database.is_template),
        }


def _cost_of(sequence: str) -> int:
    """Predicted work of one search, in residues."""
    return len(sequence) + _CALL_COST


def _units_of(database: int, kind: Kind, queries: Iterable[Query], slots: int) -> list[Unit]:
    """Units of about equal cost, the most expensive sequences first; `slots` run at once."""
    waiting = sorted(queries, key=lambda query: (-len(query.sequence), query.key))
    shares = max(slots, 1) * (1 if kind == "mmseqs" else _SHARES)
    ceiling = -(-sum(_cost_of(query.sequence) for query in waiting) // shares)
    units: list[list[Query]] = []
    cost = 0
    for query in waiting:
        is_full = cost + _cost_of(query.sequence) > ceiling
        if not units or is_full or len(units[-1]) >= _MAX_SEQUENCES[kind]:
            units.append([])
            cost = 0
        units[-1].append(query)
        cost += _cost_of(query.sequence)
    return [_unit_of(database, unit) for unit in units]


def _unit_of(database: int, queries: Sequence[Query]) -> Unit:
    keys = tuple(query.key for query in queries)
    unit_id = hashlib.sha256("\n".join([str(database), *keys]).encode()).hexdigest()
    costs = [_cost_of(query.sequence) for query in queries]
    return Unit(unit_id, keys, sum(costs), max(costs))

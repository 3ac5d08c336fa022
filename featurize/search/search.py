"""A search as it runs: what the cache has, what is missing, what it cost."""

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
from evofeed.featurize.search.aligned_text import together
from evofeed.featurize.search.cache import CachedResult, SearchCache, result_key
from evofeed.featurize.search.config import (
    Database,
    Kind,
    SearchConfig,
    SearchOptions,
    SearchProgress,
)
from evofeed.featurize.search.searchers import Query, kind_of, profile_key, suffix_of
from evofeed.featurize.search.work import DatabaseInfo, SearchResult, SearchTask, look_at

_STRIKES: Final = 3
"""Times a program may fail with a sequence."""
_GRACE: Final = 60.0
"""Seconds beyond a program's own deadline after which its worker is killed."""

_CALL_COST: Final = 60
"""Residues' worth of work that a search costs however short its sequence is."""
_SHARES: Final = 6
"""Units per slot: few enough to cost nothing, enough that no slot waits long for the last."""
_MOST: Final[dict[Kind, int]] = {"fasta": 16, "rna": 16, "hh": 4, "mmseqs": 4096}
"""Sequences of a unit; what is killed with it is done again. mmseqs pays by the call."""
_NOWHERE: Final = {
    "type": "InputError",
    "message": "no database of its kind of molecule is searched",
}

Progress = Callable[[SearchProgress], None]
Found = dict[tuple[str, int], CachedResult]
"""Results by sequence and number of the database; `Keys` are their names in the cache."""
Keys = dict[tuple[str, int], str]
Broken = dict[str, dict[str, Any]]
"""Why a sequence, or a key, has no result: `type message`."""
Wanted = dict[str, tuple[int, Query]]
"""Database and query by key."""
Starts = dict[str, tuple[CachedResult, ...]]
"""What the search of a sequence starts from."""


class Search(Dispatch):
    """A search as it runs: what is known, what is missing, what it cost."""

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
        self._wanted: Wanted = {}  # of this stage
        self._number_of: dict[str, int] = {}  # of its database, by unit
        self._cost = self._cost_done = 0

    def close(self) -> None:
        """Stop the workers, if it started some."""
        self._stack.close()

    @property
    def executor(self) -> Executor:
        """Started when there is something to search: what the cache has needs no workers."""
        if self._executor is None:
            self._executor = open_executor(self.options, _GRACE)
            self._stack.callback(self._executor.close)
        return self._executor

    def known(self) -> Found | None:
        """All results by sequence and database, if there is nothing left to search.

        Raises:
            InputError: a database is not here.
        """
        self.infos = [look_at(database, self.config) for database in self.databases]
        found: Found = {}
        for numbers in self._stages():
            keys = self._keys(numbers, found)
            there = self.cache.find(keys.values())
            found |= {where: there[key] for where, key in keys.items() if key in there}
        wanted = sum(len(self._asked(number)) for number in range(len(self.databases)))
        return found if len(found) == wanted else None

    def run(self) -> tuple[Found, Broken]:
        """Results by sequence and database, and the sequences that have not all of them."""
        self.infos = [self._look(number) for number in range(len(self.databases))]
        found: Found = {}
        asked = {s for number in range(len(self.databases)) for s in self._asked(number)}
        broken = {s: {**_NOWHERE} for s in self.sequences if s not in asked}
        for numbers in self._stages():
            self._search_stage(self._keys(numbers, found), found, broken)
        return found, broken

    @property
    def _first(self) -> int:
        plain = (i for i, db in enumerate(self.databases) if not db.is_template)
        return min(plain, key=lambda number: self.databases[number].is_rna)

    def is_rna(self, sequence: str) -> bool:
        """Whether a sequence is RNA: by its letters, where RNA is searched at all."""
        return is_rna(sequence) and any(database.is_rna for database in self.databases)

    def _asked(self, number: int) -> list[str]:
        """The sequences that are searched in a database: RNA where RNA is."""
        is_rna = self.databases[number].is_rna
        return [s for s in self.sequences if self.is_rna(s) == is_rna]

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

    def _keys(self, numbers: Sequence[int], found: Found) -> Keys:
        """The names of results of some databases, as far as their searches can start."""
        keys: Keys = {}
        for number in numbers:
            if number in self._starts:
                starts = self._starts[number] = self._starts_of(number, found)
                keys |= {(s, number): self.key(number, s, start) for s, start in starts.items()}
            else:
                keys |= {(s, number): self.key(number, s) for s in self._asked(number)}
        return keys

    def _starts_of(self, number: int, found: Found) -> Starts:
        """What the search of each sequence in a later database starts from."""
        if self.infos[number].kind == "mmseqs":
            keys = {s: profile_key(self.key(self._first, s)) for s in self._asked(number)}
            there = self.cache.find(keys.values())
            return {s: (there[key],) for s, key in keys.items() if key in there}
        order = {database.name: i for i, database in enumerate(self.databases)}
        named = [order[name] for name in self.config.template_profile if name in order]
        known = {
            s: tuple(found[s, i] for i in named or [self._first] if (s, i) in found)
            for s in self._asked(number)
        }
        return {s: results for s, results in known.items() if len(results) == len(named or [0])}

    def key(self, number: int, sequence: str, start: tuple[CachedResult, ...] = ()) -> str:
        """The name of a result in the cache."""
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

    def _look(self, number: int) -> DatabaseInfo:
        """What a database is: looked at here, or where it is."""
        database = self.databases[number]
        if database.kind is not None:
            return look_at(database, self.config)
        if not self.options.ray_address:
            kind_of(database)  # which raises
        task = SearchTask(unit_id="look", database=database, config=self.config)
        self.executor.submit(task, self.options.cores, database.resource)
        while not (outcomes := self.executor.wait(TICK)):
            pass
        outcome = outcomes[0]
        if isinstance(outcome, SearchResult) and outcome.info:
            return outcome.info
        raise getattr(outcome, "error", JobError(f"cannot be looked at: {outcome}"))

    def _search_stage(self, keys: Keys, found: Found, broken: Broken) -> None:
        """Have every key in the cache; what cannot be is `broken`."""
        there = self.cache.find(keys.values())
        wanted: Wanted = {}
        for (sequence, number), key in keys.items():
            if key in there:
                self.hits[number] += 1
            else:
                wanted[key] = number, Query(key, sequence)
        job_id = hashlib.sha256("\n".join(keys.values()).encode()).hexdigest()
        reasons = self._search(job_id, wanted) if wanted else {}
        there = self.cache.find(keys.values())
        for (sequence, number), key in keys.items():
            if key in there:
                found[sequence, number] = there[key]
            else:
                broken[sequence] = {**reasons[key], "database": self.databases[number].name}

    def _search(self, job_id: str, wanted: Wanted) -> Broken:
        """Search what the cache has not; why some of it was searched in vain."""
        queries: dict[int, list[Query]] = defaultdict(list)
        for number, query in wanted.values():
            queries[number].append(query)
        slots = self.executor.slots(self.options.cores)
        plans = {
            number: _units_of(number, self.infos[number].kind, each, slots)
            for number, each in queries.items()
        }
        units = [unit for each in plans.values() for unit in each]
        self._wanted = wanted
        self._number_of = {unit.unit_id: number for number, each in plans.items() for unit in each}
        self._cost, self._cost_done = sum(unit.cost for unit in units), 0
        with closing(Ledger("sqlite:///:memory:")) as ledger:  # the cache keeps what is done
            job = {"input_uri": "", "dataset_uri": "", "arguments": {}}
            ledger.begin(job_id, Plan(job_id, tuple(units), {}, {}), job, None)
            self.attach(ledger, job_id, units, self.options)
            self.run_units_on(self.executor)
            return {
                chain["chain_id"]: {"type": chain["type"], "message": chain["message"]}
                for chain in ledger.chains(job_id)
            }

    def remaining(self, unit_id: str) -> tuple[str, ...]:
        """Keys of a unit to search next: of those, what the cache has not."""
        return tuple(key for key in super().remaining(unit_id) if key in self._wanted)

    def resource(self, unit_id: str) -> str:
        """That of a node with the unit's database."""
        return self.databases[self._number_of[unit_id]].resource

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> SearchTask:
        """These queries of a unit, to search."""
        number = self._number_of[unit_id]
        queries = tuple(self._wanted[key][1] for key in item_ids)
        if starts := self._starts.get(number):
            queries = tuple(
                dataclasses.replace(
                    q, start=together(list(map(self.cache.read, starts[q.sequence])))
                )
                for q in queries
            )
        return SearchTask(
            unit_id=unit_id,
            database=self.databases[number],
            config=self.config,
            queries=queries,
            info=self.infos[number],
            deadline=self.options.deadline,
            scratch=self.options.scratch,
        )

    def record_output(self, output: SearchResult, item_ids: Sequence[str], is_trial: bool) -> bool:
        """Store results in the cache, record failures and finished units in the ledger."""
        unit, number = self.units[output.unit_id], self._number_of[output.unit_id]
        suffix = suffix_of(self.infos[number].kind, self.databases[number].is_template)
        self.cache.put(output.made, suffix, self._provenance(number))
        for result in output.made:
            self._wanted.pop(result.key, None)
        self.spent[number] += output.seconds  # type: ignore[assignment]
        self.searched[number] += len(item_ids)
        for key, why in output.failures.items():
            failure = {**why, "chain_id": key, "path": None, "line": None}
            self.ledger.strike(self.job_id, unit.unit_id, failure, _STRIKES)
        if self.remaining(unit.unit_id):
            return True
        nothing: dict[str, Any] = {"shard": None, "failures": (), "notes": {}}
        done = UnitResult(unit_id=unit.unit_id, num_chains=len(unit.chain_ids), **nothing)
        self.ledger.finish(self.job_id, done)
        self._cost_done += unit.cost
        return False

    def current_progress(self) -> SearchProgress:
        """How far this stage is."""
        pace = self._cost_done / max(time.monotonic() - self.began, 1e-9)
        left = (self._cost - self._cost_done) / pace if pace else None
        searched, hits = sum(self.searched.values()), sum(self.hits.values())
        return SearchProgress(searched, hits, self._cost_done / max(self._cost, 1), left)

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
    filled = 0
    for query in waiting:
        full = filled + _cost_of(query.sequence) > ceiling
        if not units or full or len(units[-1]) >= _MOST[kind]:
            units.append([])
            filled = 0
        units[-1].append(query)
        filled += _cost_of(query.sequence)
    return [_unit_of(database, unit) for unit in units]


def _unit_of(database: int, queries: Sequence[Query]) -> Unit:
    keys = tuple(query.key for query in queries)
    name = hashlib.sha256("\n".join([str(database), *keys]).encode()).hexdigest()
    costs = [_cost_of(query.sequence) for query in queries]
    return Unit(name, keys, sum(costs), max(costs))

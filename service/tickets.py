"""Tickets of the ColabFold protocol: sequences handed in, searched together, fetched as tar.gz.

A ticket is a small file in the service's home, so it outlives the service; what it asks for is
searched by `evofeed.featurize.search` and kept in its cache. One thread searches: it takes
waiting tickets in turns, one of each principal, and searches all it took in one batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from evofeed.errors import EvofeedError, InputError
from evofeed.featurize import search  # each name loads its own module when it is first used
from evofeed.files import write_atomic
from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings
from evofeed.service.ticket_text import as_a3m, blocks_of, hits_of, parse_query

PENDING, RUNNING, COMPLETE, ERROR = "PENDING", "RUNNING", "COMPLETE", "ERROR"
MODES: Final = re.compile(
    r"((env|all|env-nofilter|nofilter)(-notemplates)?|pair(greedy|complete)(-env)?)$"
)
_BATCH: Final = 64
"""Sequences searched together, at least one ticket's."""
_KEPT: Final = 7 * 86_400.0
"""Seconds a ticket may be asked for."""
_NAMES: Final = {"uniref": "uniref.a3m", "env": "bfd.mgnify30.metaeuk30.smag30.a3m"}
_log = logging.getLogger("evofeed.service.tickets")


@dataclass(slots=True)
class Ticket:
    """What somebody asked for.

    Attributes:
        id: its name.
        principal: whose it is.
        names: of its sequences, the numbers that clients give them.
        sequences: upper-case letters.
        mode: as the protocol has it.
        state: PENDING, RUNNING, COMPLETE or ERROR.
        message: why it is ERROR.
        made_at: Unix seconds.
    """

    id: str
    principal: str
    names: list[str]
    sequences: list[str]
    mode: str
    state: str = PENDING
    message: str = ""
    made_at: float = 0.0

    @property
    def wanted(self) -> tuple[str, ...]:
        """The databases it is searched in, where the service has them."""
        words = self.mode.split("-")
        if self.mode.startswith("pair"):
            return ("uniref", "env_pair") if "env" in words else ("uniref",)
        env = ("env",) if "env" in words else ()
        return ("uniref", *env, *(() if "notemplates" in words else ("pdb",)))

    @property
    def expansion(self) -> Literal["filter", "nofilter", "pair"]:
        """What becomes of the members of clusters."""
        if self.mode.startswith("pair"):
            return "pair"
        return "nofilter" if "nofilter" in self.mode.split("-") else "filter"


class Tickets:
    """The tickets of a service, and the thread that works on them."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.folder = settings.home / "tickets"
        self.databases = {
            name: dataclasses.replace(
                search.Database.parse(text, is_template=name == "pdb"), name=name
            )
            for name, text in settings.msa_databases.items()
        }
        self._tickets: dict[str, Ticket] = {}
        self._queues: OrderedDict[str, deque[str]] = OrderedDict()
        self._spent: dict[str, deque[tuple[float, int]]] = {}
        self._lock = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._cache: search.SearchCache | None = None

    def start(self) -> None:
        """Take up what an earlier service left, and begin."""
        if self.databases:
            self.open()
            self._thread = threading.Thread(target=self._work, name="tickets", daemon=True)
            self._thread.start()

    def open(self) -> None:
        """Take up what an earlier service left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._cache = search.SearchCache(self.settings.msa_cache or self.settings.home / "msa")
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(ValueError, TypeError, OSError):
                self._remember(Ticket(**json.loads(path.read_text())))

    def close(self) -> None:
        """Stop; what was not finished is taken up by the next service."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._cache is not None:
            self._cache.close()

    def submit(self, principal: str, text: str, mode: str, quota: int | None) -> Ticket:
        """A ticket for the sequences of a FASTA text; COMPLETE at once if all are known.

        Args:
            principal: whose it is.
            text: the sequences.
            mode: of the protocol.
            quota: sequences the principal may hand in within a day.

        Raises:
            Problem: 429, too many of its tickets wait or its quota is used up.
            InputError: no sequences, or none that can be searched.
        """
        self._require_databases()
        names, sequences = parse_query(text, self.settings.msa_max_sequences)
        if not MODES.match(mode):
            raise InputError(f"no mode {mode[:40]!r}: env, all, pairgreedy, ...")
        parts = [principal, mode, *names, *sequences]
        name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:43]
        with self._lock:
            known = self._tickets.get(name)
            if known is not None and known.state != ERROR:
                return known
        ticket = Ticket(name, principal, names, sequences, mode, made_at=time.time())
        if self._found(ticket) is not None:
            ticket.state = COMPLETE
        with self._lock:
            if ticket.state == PENDING:
                self._require_room(principal, len(sequences), quota)
            self._save(ticket)
            self._remember(ticket)
            self._lock.notify_all()
        return ticket

    def get(self, ticket_id: str, principal: str) -> Ticket | None:
        """A principal's ticket, None if there is none of that id."""
        with self._lock:
            ticket = self._tickets.get(ticket_id)
        return ticket if ticket is not None and ticket.principal == principal else None

    def result(self, ticket: Ticket) -> bytes:
        """What a complete ticket asked for, as tar.gz.

        Raises:
            InputError: it is in the cache no more: a database was replaced since.
        """
        found = self._found(ticket)
        if found is None:
            raise InputError("a database was replaced since: hand it in again", item=ticket.id)
        return search.packed_tar(dict(self._files(ticket, found)))

    def templates(self, names: Sequence[str]) -> bytes:
        """Alignments and structures of templates, as tar.gz.

        Raises:
            Problem: 404, the service has none.
        """
        if not self.settings.msa_templates or self.settings.msa_mmcif is None:
            raise Problem(404, "not_found", "this service has no templates", next="see its docs")
        place = self.settings.msa_templates, str(self.settings.msa_mmcif)
        return search.pack_templates(names, *place)

    def waiting(self) -> int:
        """Tickets that wait."""
        with self._lock:
            return sum(map(len, self._queues.values()))

    def _require_databases(self) -> None:
        if not self.databases:
            raise Problem(
                503,
                "no_search",
                "this service searches nothing",
                next="set EVOFEED_MSA_DATABASES, see docs/search.md",
            )

    def _require_room(self, principal: str, count: int, quota: int | None) -> None:
        queue = self._queues.get(principal, ())
        if len(queue) >= self.settings.msa_max_waiting:
            raise _limited(f"{len(queue)} tickets of yours wait", 10.0)
        spent = self._spent.setdefault(principal, deque())
        now = time.time()
        while spent and spent[0][0] < now - 86_400:
            spent.popleft()
        if quota is not None and sum(n for _, n in spent) + count > quota:
            wait = spent[0][0] + 86_400 - now if spent else 86_400.0
            raise _limited(f"{quota} sequences a day are your quota", wait)
        spent.append((now, count))

    def _remember(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket
        if ticket.state in (PENDING, RUNNING):
            ticket.state = PENDING
            self._queues.setdefault(ticket.principal, deque()).append(ticket.id)

    def _save(self, ticket: Ticket) -> None:
        write_atomic(self.folder / f"{ticket.id}.json", json.dumps(dataclasses.asdict(ticket)))

    def _databases(self, ticket: Ticket) -> list[search.Database]:
        return [self.databases[name] for name in ticket.wanted if name in self.databases]

    def _search(
        self, tickets: Sequence[Ticket], executor: search.SearchExecutor | None
    ) -> search.Search:
        """A search of what tickets of one kind ask for."""
        assert self._cache is not None
        sequences = dict.fromkeys(s for ticket in tickets for s in ticket.sequences)
        databases = self._databases(tickets[0])
        config = search.SearchConfig.colabfold(expansion=tickets[0].expansion)
        options = search.SearchOptions(workers=self.settings.msa_workers)
        return search.Search(
            list(sequences), databases, config, options, self._cache, executor=executor
        )

    def _found(self, ticket: Ticket) -> dict[tuple[str, str], bytes] | None:
        """Its results by sequence and database, if the cache has all."""
        assert self._cache is not None
        asked = self._search([ticket], None)
        found = asked.known()
        if found is None:
            return None
        names = [database.name for database in asked.databases]
        return {(s, names[i]): self._cache.read(one) for (s, i), one in found.items()}

    # the thread

    def _work(self) -> None:
        options = search.SearchOptions(workers=self.settings.msa_workers)
        with search.open_executor(options) as executor:
            while (batch := self.next_batch()) is not None:
                try:
                    self._do(batch, executor)
                except EvofeedError as error:
                    self._end(batch, {ticket.id: str(error) for ticket in batch})
                except Exception:
                    _log.exception("a batch of tickets failed")
                    self._end(batch, {ticket.id: "not foreseen" for ticket in batch})

    def next_batch(self) -> list[Ticket] | None:
        """Waiting tickets that want the same databases, one of each principal in turn."""
        with self._lock:
            while not self._stopping and not any(self._queues.values()):
                self._forget()
                self._lock.wait(60)
            if self._stopping:
                return None
            batch: list[Ticket] = []
            size = 0
            while any(self._queues.values()) and size < _BATCH:
                principal, queue = self._queues.popitem(last=False)
                ticket = self._tickets[queue[0]] if queue else None
                if ticket is not None and (not batch or _alike(ticket, batch[0])):
                    queue.popleft()
                    ticket.state = RUNNING
                    batch.append(ticket)
                    size += len(ticket.sequences)
                elif ticket is not None:
                    self._queues[principal] = queue
                    self._queues.move_to_end(principal, last=False)
                    break
                if queue:
                    self._queues[principal] = queue  # behind all others
            return batch

    def _do(self, batch: list[Ticket], executor: search.SearchExecutor) -> None:
        with contextlib.closing(self._search(batch, executor)) as asked:
            _, broken = asked.run()
        why = {sequence: reason["message"] for sequence, reason in broken.items()}
        self._end(
            batch,
            {t.id: why[s] for t in batch for s in t.sequences if s in why},
        )

    def _end(self, batch: list[Ticket], failed: dict[str, str]) -> None:
        with self._lock:
            for ticket in batch:
                ticket.message = failed.get(ticket.id, "")
                ticket.state = ERROR if ticket.id in failed else COMPLETE
                self._save(ticket)

    def _forget(self) -> None:
        """Tickets that nobody has fetched for long are gone; their results stay in the cache."""
        for ticket in list(self._tickets.values()):
            if ticket.made_at < time.time() - _KEPT:
                del self._tickets[ticket.id]
                (self.folder / f"{ticket.id}.json").unlink(missing_ok=True)

    # results

    def _files(
        self, ticket: Ticket, found: dict[tuple[str, str], bytes]
    ) -> Iterator[tuple[str, bytes]]:
        databases = self._databases(ticket)
        a3ms = {
            db.name: [as_a3m(found[s, db.name]) for s in ticket.sequences]
            for db in databases
            if not db.is_template
        }
        if ticket.mode.startswith("pair"):
            complete = "complete" in ticket.mode
            paired = (search.pair(one, complete=complete) for one in a3ms.values())
            yield "pair.a3m", b"".join(blocks_of(ticket.names, blocks) for blocks in paired)
        else:
            if "env" in ticket.wanted and "env" not in self.databases:
                a3ms["env"] = [f">q\n{s}\n".encode() for s in ticket.sequences]
            for name, texts in a3ms.items():
                yield _NAMES[name], blocks_of(ticket.names, texts)
            hits = [
                (name, found.get((sequence, "pdb"), b""))
                for name, sequence in zip(ticket.names, ticket.sequences, strict=True)
            ]
            yield "pdb70.m8", b"".join(hits_of(name, table) for name, table in hits)
        yield "msa.sh", self._script(ticket, databases)

    def _script(self, ticket: Ticket, databases: Sequence[search.Database]) -> bytes:
        """What clients keep beside results to know how they were made."""
        config = search.SearchConfig.colabfold(expansion=ticket.expansion)
        made = (config.mmseqs, config.align_options(), config.msa_options())
        calls = zip(("search", "align", "result2msa"), made, strict=True)
        lines = ["#!/bin/sh", "# Made by evofeed; settings that the results depend on:"]
        lines += [f"# {database.name}: {Path(database.path).name}" for database in databases]
        lines += [f"# mmseqs {module} {' '.join(options)}" for module, options in calls]
        return "\n".join([*lines, ""]).encode()


def _alike(one: Ticket, other: Ticket) -> bool:
    """Whether two tickets are searched in the same databases, in the same way."""
    return one.wanted == other.wanted and one.expansion == other.expansion


def _limited(what: str, wait: float) -> Problem:
    seconds = str(max(1, round(wait)))
    return Problem(
        429, "rate_limited", what, next=f"wait {seconds} s", headers={"Retry-After": seconds}
    )

"""Tickets of the ColabFold protocol: sequences handed in, searched together, fetched as tar.gz.

What a ticket asks for is searched by `evofeed.featurize.search` and kept in its cache. One thread
of one worker searches: it takes waiting tickets in turns, one of each principal, and searches all
it took in one batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from evofeed.errors import EvofeedError, InputError
from evofeed.featurize import search  # each name loads its own module when it is first used
from evofeed.service.database.database import Database
from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings
from evofeed.service.tickets.queue import COMPLETE, PENDING, RUNNING, Ticket, TicketQueue
from evofeed.service.tickets.text import as_a3m, blocks_of, hits_of, parse_query

MODES: Final = re.compile(
    r"((env|all|env-nofilter|nofilter)(-notemplates)?|pair(greedy|complete)(-env)?)$"
)
_NAMES: Final = {"uniref": "uniref.a3m", "env": "bfd.mgnify30.metaeuk30.smag30.a3m"}
_TICK: Final = 0.3
"""Seconds after which it is seen what other workers were handed."""
_FORGET_SECONDS: Final = 3600.0
_log = logging.getLogger("evofeed.service.tickets")


class Tickets:
    """The tickets of a service, and the thread that works on them.

    Args:
        settings: what is searched, and how.
        database: of the tickets.
    """

    def __init__(self, settings: ServiceSettings, database: Database) -> None:
        self.settings = settings
        self.databases = {
            name: dataclasses.replace(
                search.Database.parse(text, is_template=name == "pdb"), name=name
            )
            for name, text in settings.msa_databases.items()
        }
        self._folder = settings.msa_cache or settings.home / "msa"
        place = hashlib.sha256(str(self._folder.absolute()).encode()).hexdigest()
        self.queue = TicketQueue(database, place, settings.msa_max_waiting)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="tickets", daemon=True)
        self._open = threading.Lock()
        self._kept: search.SearchCache | None = None
        self._forgotten = -_FORGET_SECONDS

    @property
    def _cache(self) -> search.SearchCache:
        with self._open:
            if self._kept is None:
                self._kept = search.SearchCache(self._folder)
            return self._kept

    def start(self) -> None:
        """Take up what an earlier service left, and begin."""
        if self.databases:
            self._thread.start()

    def close(self) -> None:
        """Stop; what was not finished is taken up by the next service."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._kept is not None:
            self._kept.close()

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
        known = self.queue.find(name)
        if known is not None and known.state in (PENDING, RUNNING):
            return known
        ticket = Ticket(name, principal, names, sequences, mode)
        if self._found(ticket) is not None:
            ticket.state = COMPLETE
        self.queue.add(ticket, quota)
        self._wake.set()
        return ticket

    def get(self, ticket_id: str, principal: str) -> Ticket | None:
        """A principal's ticket, None if there is none of that id."""
        ticket = self.queue.find(ticket_id)
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

    def _require_databases(self) -> None:
        if not self.databases:
            raise Problem(
                503,
                "no_search",
                "this service searches nothing",
                next="set EVOFEED_MSA_DATABASES, see docs/search.md",
            )

    def _databases(self, ticket: Ticket) -> list[search.Database]:
        return [self.databases[name] for name in ticket.wanted if name in self.databases]

    def _search(
        self, tickets: Sequence[Ticket], executor: search.SearchExecutor | None
    ) -> search.Search:
        """A search of what tickets of one kind ask for."""
        sequences = dict.fromkeys(s for ticket in tickets for s in ticket.sequences)
        databases = self._databases(tickets[0])
        config = search.SearchConfig.colabfold(expansion=tickets[0].expansion)
        options = search.SearchOptions(workers=self.settings.msa_workers)
        return search.Search(
            list(sequences), databases, config, options, self._cache, executor=executor
        )

    def _found(self, ticket: Ticket) -> dict[tuple[str, str], bytes] | None:
        """Its results by sequence and database, if the cache has all."""
        asked = self._search([ticket], None)
        found = asked.known()
        if found is None:
            return None
        names = [database.name for database in asked.databases]
        return {(s, names[i]): self._cache.read(one) for (s, i), one in found.items()}

    # the thread

    def _work(self) -> None:
        self._until_done(self.queue.recover)
        options = search.SearchOptions(workers=self.settings.msa_workers)
        with search.open_executor(options) as executor:
            while not self._stop.is_set():
                self._until_done(lambda: self._next_batch(executor))

    def _until_done(self, step: Callable[[], None]) -> None:
        """Do it; while the database is away, try again."""
        away = False
        while not self._stop.is_set():
            try:
                step()
                return
            except (DBAPIError, PoolTimeout) as error:
                if not away:  # once, not for as long as it is away
                    _log.error("tickets wait for the database: %s", error)
                away = True
                self._stop.wait(_TICK)

    def _next_batch(self, executor: search.SearchExecutor) -> None:
        if time.monotonic() > self._forgotten + _FORGET_SECONDS:
            self._forgotten = time.monotonic()
            self.queue.forget()
        self._wake.clear()
        batch = self.queue.take()
        if not batch:
            self._wake.wait(_TICK)
            return
        failed = self._do(batch, executor)
        self._until_done(lambda: self.queue.end(batch, failed))

    def _do(self, batch: list[Ticket], executor: search.SearchExecutor) -> dict[str, str]:
        """Search what tickets ask for; why, by id, for those that failed."""
        try:
            with contextlib.closing(self._search(batch, executor)) as asked:
                _, broken = asked.run()
        except EvofeedError as error:
            return {ticket.id: str(error) for ticket in batch}
        except Exception:
            _log.exception("a batch of tickets failed")
            return {ticket.id: "not foreseen" for ticket in batch}
        why = {sequence: reason["message"] for sequence, reason in broken.items()}
        return {t.id: why[s] for t in batch for s in t.sequences if s in why}

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

"""Tickets of the ColabFold protocol: submitted sequences, searched in batches, returned as tar.gz.

What a ticket asks for is searched by `evofeed.featurize.search` and kept in its cache. One thread
of one worker searches: it takes waiting tickets in turns, one of each principal, and searches all
it took in one batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import email
import email.policy
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import parse_qsl

from sqlalchemy import delete, func, select, update

from evofeed.base.errors import EvofeedError, InputError
from evofeed.featurize import job as jobs
from evofeed.featurize import search  # lazily loaded
from evofeed.service.database.database import Database
from evofeed.service.database.tables import TicketRow
from evofeed.service.problems import Problem
from evofeed.service.remembered import AWAY
from evofeed.service.settings import ServiceSettings

PENDING, RUNNING, COMPLETE, ERROR = "PENDING", "RUNNING", "COMPLETE", "ERROR"
_BATCH: Final = 64
"""Sequences of a batch, at least one ticket's."""
_MOST_SEQUENCES: Final = 100
"""Sequences of one ticket."""
_KEEP: Final = 7 * 86_400.0
"""Seconds that a ticket can be fetched."""
MODES: Final = re.compile(
    r"((env|all|env-nofilter|nofilter)(-notemplates)?|pair(greedy|complete)(-env)?)$"
)
_NAMES: Final = {"uniref": "uniref.a3m", "env": "bfd.mgnify30.metaeuk30.smag30.a3m"}
_TICK: Final = 0.3
"""Seconds between checks for tickets of other workers."""
_FORGET_SECONDS: Final = 3600.0
_log = logging.getLogger("evofeed.service.tickets")


def wanted_databases(mode: str) -> tuple[str, ...]:
    """The databases that a mode of the protocol searches, where the service has them."""
    words = mode.split("-")
    if mode.startswith("pair"):
        return ("uniref", "env_pair") if "env" in words else ("uniref",)
    env = ("env",) if "env" in words else ()
    return ("uniref", *env, *(() if "notemplates" in words else ("pdb",)))


def expansion(mode: str) -> Literal["filter", "nofilter", "pair"]:
    """How members of clusters are expanded: `pair`, `filter` or `nofilter`."""
    if mode.startswith("pair"):
        return "pair"
    return "nofilter" if "nofilter" in mode.split("-") else "filter"


class TicketQueue:
    """The tickets of the services that share a cache."""

    def __init__(self, database: Database, place: str, max_waiting: int) -> None:
        self._database, self._place, self._max_waiting = database, place, max_waiting
        self._ours = TicketRow.place == place

    def find(self, ticket_id: str) -> TicketRow | None:
        """A ticket, None if there is none of that id."""
        with self._database.read() as session:
            return session.get(TicketRow, (ticket_id, self._place))

    def add(self, ticket: TicketRow) -> None:
        """Insert a ticket, or replace one of the same id.

        Raises:
            Problem: 429, too many of its tickets wait.
        """
        theirs = (TicketRow.principal == ticket.principal, TicketRow.state == PENDING)
        waiting = select(func.count()).where(self._ours, *theirs)
        with self._database.write() as session:
            self._database.alone(session, f"tickets {self._place}")
            if ticket.state == PENDING and (session.scalar(waiting) or 0) >= self._max_waiting:
                message = f"{self._max_waiting} tickets of yours wait"
                raise Problem(429, "rate_limited", message, next="wait 10 s", wait=10)
            ticket.place, ticket.made_at = self._place, time.time()
            session.merge(ticket)

    def recover(self) -> None:
        """Requeue tickets whose process has died."""
        begun = (self._ours, TicketRow.state == RUNNING)
        with self._database.write() as session:
            session.execute(update(TicketRow).where(*begun).values(state=PENDING))

    def take(self) -> list[TicketRow]:
        """Waiting tickets of the same kind of search, one per principal in turn; the principal that
        has waited longest since its last turn comes first."""
        turn = func.row_number().over(partition_by=TicketRow.principal, order_by=TicketRow.made_at)
        last = select(TicketRow.principal, func.max(TicketRow.taken_at).label("at"))
        last_turn = last.where(self._ours).group_by(TicketRow.principal).subquery()
        waiting = (
            select(TicketRow)
            .join(last_turn, last_turn.c.principal == TicketRow.principal)
            .where(self._ours, TicketRow.state == PENDING)
            .order_by(turn, last_turn.c.at, TicketRow.made_at)
            .limit(_BATCH)
        )
        batch: list[TicketRow] = []
        with self._database.write() as session:
            self._database.alone(session, f"tickets {self._place}")
            for ticket in session.scalars(waiting):
                full = sum(len(other.sequences) for other in batch) >= _BATCH
                if batch and (full or _kind(ticket) != _kind(batch[0])):
                    break
                ticket.state, ticket.taken_at = RUNNING, time.time()
                batch.append(ticket)
        return batch

    def end(self, tickets: Sequence[TicketRow], failed: Mapping[str, str]) -> None:
        """Record the ends of tickets."""
        with self._database.write() as session:
            for ticket in tickets:
                if row := session.get(TicketRow, (ticket.id, self._place)):
                    row.message = failed.get(ticket.id, "").replace("\x00", "")
                    row.state = ERROR if ticket.id in failed else COMPLETE

    def forget(self) -> None:
        """Delete tickets that were not fetched for long; their results stay in the cache."""
        old = TicketRow.made_at < time.time() - _KEEP
        with self._database.write() as session:
            session.execute(delete(TicketRow).where(self._ours, old))


def _kind(ticket: TicketRow) -> object:
    """Tickets of one kind are searched in the same databases, in the same way."""
    return wanted_databases(ticket.mode), expansion(ticket.mode)


class Tickets:
    """The tickets of a service, and the thread that searches them."""

    def __init__(self, settings: ServiceSettings, database: Database) -> None:
        self.settings = settings
        self.databases = {
            name: dataclasses.replace(
                search.Database.parse(text, is_template=name == "pdb"), name=name
            )
            for name, text in settings.msa_databases.items()
        }
        self._folder = settings.searched
        place = hashlib.sha256(str(self._folder.absolute()).encode()).hexdigest()
        self.queue = TicketQueue(database, place, settings.msa_max_waiting)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="tickets", daemon=True)
        self._forgotten = -_FORGET_SECONDS
        self._lock = threading.Lock()
        self._opened: search.SearchCache | None = None

    @property
    def _cache(self) -> search.SearchCache:
        with self._lock:
            self._opened = self._opened or search.SearchCache(self._folder)
            return self._opened

    def start(self) -> None:
        """Requeue tickets of an earlier service, and start the thread."""
        if self.databases:
            self._thread.start()

    def close(self) -> None:
        """Stop; the next service continues unfinished tickets."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._opened is not None:
            self._opened.close()

    def submit(self, principal: str, text: str, mode: str) -> TicketRow:
        """A ticket for the sequences of a FASTA text; COMPLETE at once if all are cached.

        Raises:
            Problem: 404, nothing is searched here; 429, too many of its tickets wait.
            InputError: no sequences, or none that can be searched.
        """
        if not self.databases:
            hint = "its operator sets EVOFEED_MSA_DATABASES, see docs/search.md"
            message = "this service has no databases to search"
            raise Problem(404, "no_search", message, next=hint)
        names, sequences = parse_query(text)
        if not MODES.match(mode):
            raise InputError(f"no mode {mode[:40]!r}: env, all, pairgreedy, ...")
        parts = "\n".join([principal, mode, *names, *sequences])
        ticket = TicketRow(
            id=hashlib.sha256(parts.encode()).hexdigest()[:43], principal=principal, names=names,
            sequences=sequences, mode=mode, state=PENDING, message="", taken_at=0.0,
        )  # fmt: skip
        waiting = self.queue.find(ticket.id)
        if waiting is not None and waiting.state in (PENDING, RUNNING):
            return waiting
        if self._cached_results(ticket) is not None:
            ticket.state = COMPLETE
        self.queue.add(ticket)
        self._wake.set()
        return ticket

    def get(self, ticket_id: str, principal: str) -> TicketRow | None:
        """A principal's ticket, None if there is none of that id."""
        ticket = self.queue.find(ticket_id)
        return ticket if ticket and ticket.principal == principal else None

    def result(self, ticket: TicketRow) -> bytes:
        """The result of a complete ticket, as tar.gz.

        Raises:
            InputError: it left the cache because a database was replaced.
        """
        alignments = self._cached_results(ticket)
        if alignments is None:
            raise InputError("a database was replaced since: submit it again", item=ticket.id)
        return search.packed_tar(dict(self._files(ticket, alignments)))

    def templates(self, names: Sequence[str]) -> bytes:
        """Alignments and structures of templates, as tar.gz.

        Raises:
            Problem: 404, the service has none.
        """
        if not self.settings.msa_templates or self.settings.msa_mmcif is None:
            raise Problem(404, "not_found", "this service has no templates", next="see its docs")
        databases = self.settings.msa_templates, str(self.settings.msa_mmcif)
        return search.pack_templates(names, *databases)

    def _databases(self, mode: str) -> list[search.Database]:
        names = wanted_databases(mode)
        return [self.databases[name] for name in names if name in self.databases]

    def _search(
        self, tickets: Sequence[TicketRow], executor: jobs.Executor | None
    ) -> search.Search:
        """A search of what tickets of one kind ask for."""
        sequences = dict.fromkeys(s for ticket in tickets for s in ticket.sequences)
        mode = tickets[0].mode
        config = search.SearchConfig.colabfold(expansion=expansion(mode))
        options = search.SearchOptions(workers=self.settings.msa_workers)
        inputs = (list(sequences), self._databases(mode), config, options, self._cache)
        return search.Search(*inputs, executor=executor)

    def _cached_results(self, ticket: TicketRow) -> dict[tuple[str, str], bytes] | None:
        """Its results by sequence and database, if the cache has all."""
        lookup = self._search([ticket], None)
        paths = lookup.cached_results()
        if paths is None:
            return None
        names = [database.name for database in lookup.databases]
        return {(s, names[i]): self._cache.read(path) for (s, i), path in paths.items()}

    def _files(
        self, ticket: TicketRow, alignments: Mapping[tuple[str, str], bytes]
    ) -> Iterator[tuple[str, bytes]]:
        """The files of a result, by name."""
        a3ms = {
            db.name: [as_a3m(alignments[s, db.name]) for s in ticket.sequences]
            for db in self._databases(ticket.mode)
            if not db.is_template
        }
        if ticket.mode.startswith("pair"):
            complete = "complete" in ticket.mode
            paired = (search.pair(texts, complete=complete) for texts in a3ms.values())
            yield "pair.a3m", b"".join(blocks_of(ticket.names, blocks) for blocks in paired)
            return
        if "env" in wanted_databases(ticket.mode) and "env" not in self.databases:
            a3ms["env"] = [f">q\n{s}\n".encode() for s in ticket.sequences]
        for name, texts in a3ms.items():
            yield _NAMES[name], blocks_of(ticket.names, texts)
        hits = (
            name.encode() + b"\t" + line.partition(b"\t")[2] + b"\n"
            for name, sequence in zip(ticket.names, ticket.sequences, strict=True)
            for line in alignments.get((sequence, "pdb"), b"").splitlines()
        )
        yield "pdb70.m8", b"".join(hits)

    # the thread

    def _work(self) -> None:
        self._until_done(self.queue.recover)
        options = search.SearchOptions(workers=self.settings.msa_workers)
        with contextlib.closing(jobs.open_executor(options)) as executor:
            while not self._stop.is_set():
                self._until_done(lambda: self._next_batch(executor))

    def _until_done(self, step: Callable[[], None]) -> None:
        """Call a function, again while the database is down."""
        away = False
        while not self._stop.is_set():
            try:
                step()
                return
            except AWAY as error:
                if not away:  # once, not at every try
                    _log.error("tickets wait for the database: %s", error)
                away = True
                self._stop.wait(_TICK)

    def _next_batch(self, executor: jobs.Executor) -> None:
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

    def _do(self, batch: Sequence[TicketRow], executor: jobs.Executor) -> dict[str, str]:
        """Search a batch of tickets; returns the reasons of failed ones by id."""
        try:
            with contextlib.closing(self._search(batch, executor)) as running:
                _, broken = running.run()
        except EvofeedError as error:  # its path is for the operator only
            _log.error("a batch of tickets failed: %s", error)
            return {ticket.id: error.message for ticket in batch}
        except Exception:
            _log.exception("a batch of tickets failed")
            return {ticket.id: "not foreseen" for ticket in batch}
        why = {sequence: reason["message"] for sequence, reason in broken.items()}
        return {t.id: why[s] for t in batch for s in t.sequences if s in why}


_LETTERS: Final = re.compile(r"[A-Za-z]+")


def form_of(kind: str, body: bytes) -> dict[str, str]:
    """Fields of a form, urlencoded or multipart.

    Raises:
        InputError: it is not a form, or not in ASCII.
    """
    try:
        if kind.lower().startswith("multipart/form-data"):
            head = f"Content-Type: {kind}\n\n".encode()
            form = {}
            message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
            for part in message.iter_parts():
                data = part.get_payload(decode=True)
                name = part.get_param("name", "", "content-disposition")
                form[str(name)] = data.decode("ascii") if isinstance(data, bytes) else ""
            return form
        if kind and "x-www-form-urlencoded" not in kind.lower():
            raise InputError(f"send a form with the fields q and mode, not {kind[:60]!r}")
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=16))
    except ValueError as error:
        raise InputError(f"the form cannot be read: {error}") from None


def parse_query(text: str) -> tuple[list[str], list[str]]:
    """Names and sequences of a FASTA text; a bare sequence is called 101.

    Raises:
        InputError: none, too many, a name twice, or letters that are none.
    """
    text = text if text.lstrip().startswith(">") else f">101\n{text}"
    names, sequences = [], []
    for record in text.split(">")[1:]:
        head, _, body = record.partition("\n")
        sequence = "".join(body.split()).upper()
        if not _LETTERS.fullmatch(sequence):
            raise InputError("a sequence has letters A to Z only", item=head.strip()[:40])
        names.append((head.split() or [""])[0])
        sequences.append(sequence)
    if not 1 <= len(names) <= _MOST_SEQUENCES or len(set(names)) < len(names):
        raise InputError(f"send 1 to {_MOST_SEQUENCES} sequences, each with a different name")
    return names, sequences


def as_a3m(data: bytes) -> bytes:
    """A result in A3M, from any search program's format."""
    return data if data.startswith(b">") else search.to_a3m(search.read_any(data))


def blocks_of(names: Sequence[str], a3ms: Sequence[bytes]) -> bytes:
    """Concatenated alignments, each with its query's name first and a NUL at its end."""
    blocks = (
        f">{name}\n".encode() + a3m.partition(b"\n")[2]
        for name, a3m in zip(names, a3ms, strict=True)
    )
    return b"".join(block.rstrip(b"\n") + b"\n\0" for block in blocks)

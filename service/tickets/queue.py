"""Tickets in the database: whichever worker is asked knows them, and one takes them in turns."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from evofeed.service.database.database import Database
from evofeed.service.database.tables import TicketRow
from evofeed.service.problems import Problem

PENDING, RUNNING, COMPLETE, ERROR = "PENDING", "RUNNING", "COMPLETE", "ERROR"
_BATCH: Final = 64
"""Sequences searched together, at least one ticket's."""
_DAY: Final = 86_400.0
_KEPT: Final = 7 * _DAY
"""Seconds a ticket may be asked for."""
_LOST: Final = 3600.0
"""Seconds after which a ticket that another service took is searched again."""


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
    """

    id: str
    principal: str
    names: list[str]
    sequences: list[str]
    mode: str
    state: str = PENDING
    message: str = ""

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


class TicketQueue:
    """The tickets of the services that share a cache.

    Args:
        database: where they are.
        place: names the cache with their alignments.
        max_waiting: tickets of one principal.
    """

    def __init__(self, database: Database, place: str, max_waiting: int) -> None:
        self._database, self._place, self._max_waiting = database, place, max_waiting
        self._served: OrderedDict[str, None] = OrderedDict()  # who had a turn, the last one last

    def find(self, ticket_id: str) -> Ticket | None:
        """A ticket, None if there is none of that id."""
        with self._database.read() as session:
            row = session.get(TicketRow, (ticket_id, self._place))
            return None if row is None else _ticket(row)

    def add(self, ticket: Ticket, quota: int | None) -> None:
        """Enter a ticket, in place of one of the same name.

        Args:
            ticket: PENDING, or COMPLETE, which costs nothing.
            quota: sequences that its principal may hand in within a day.

        Raises:
            Problem: 429, too many of its tickets wait or its quota is used up.
        """
        count = len(ticket.sequences) if ticket.state == PENDING else 0
        with self._database.write() as session:
            self._database.alone(session, f"tickets {self._place}")
            if count:
                self._require_room(session, ticket.principal, count, quota)
            values = dataclasses.asdict(ticket)
            session.merge(
                TicketRow(place=self._place, charged=count, made_at=time.time(), **values)
            )

    def _require_room(
        self, session: Session, principal: str, count: int, quota: int | None
    ) -> None:
        mine = (TicketRow.place == self._place, TicketRow.principal == principal)
        waiting = select(func.count()).where(*mine, TicketRow.state == PENDING)
        if (found := session.scalar(waiting) or 0) >= self._max_waiting:
            raise _limited(f"{found} tickets of yours wait", 10.0)
        now = time.time()
        spent = select(func.sum(TicketRow.charged), func.min(TicketRow.made_at)).where(
            *mine, TicketRow.charged > 0, TicketRow.made_at > now - _DAY
        )
        total, first = session.execute(spent).one()
        if quota is not None and (total or 0) + count > quota:
            wait = first + _DAY - now if first else _DAY
            raise _limited(f"{quota} sequences a day are your quota", wait)

    def recover(self) -> None:
        """Have searched again what a process that is gone had begun."""
        begun = (TicketRow.place == self._place, TicketRow.state == RUNNING)
        with self._database.write() as session:
            session.execute(update(TicketRow).where(*begun).values(state=PENDING))

    def take(self) -> list[Ticket]:
        """Waiting tickets that want the same databases, one of each principal in turn."""
        old = time.time() - _LOST
        waits = or_(
            TicketRow.state == PENDING,
            (TicketRow.state == RUNNING) & (TicketRow.taken_at < old),
        )
        oldest = select(TicketRow.id, TicketRow.principal).where(
            TicketRow.place == self._place, waits
        )
        with self._database.read() as session:
            waiting = session.execute(oldest.order_by(TicketRow.made_at)).all()
        if not waiting:
            return []
        queues: OrderedDict[str, deque[str]] = OrderedDict()
        for ticket_id, principal in waiting:
            queues.setdefault(principal, deque()).append(ticket_id)
        for principal in self._served:  # who has had a turn is behind who has not
            if principal in queues:
                queues.move_to_end(principal)
        with self._database.write() as session:
            self._database.alone(session, f"tickets {self._place}")
            return self._in_turns(session, queues)

    def _in_turns(self, session: Session, queues: OrderedDict[str, deque[str]]) -> list[Ticket]:
        batch: list[Ticket] = []
        size = 0
        while queues and size < _BATCH:
            principal, queue = queues.popitem(last=False)
            row = session.get(TicketRow, (queue.popleft(), self._place))
            if row is not None and row.state in (PENDING, RUNNING):
                ticket = _ticket(row)
                if batch and not _alike(ticket, batch[0]):
                    break
                row.state, row.taken_at = RUNNING, time.time()
                batch.append(ticket)
                size += len(ticket.sequences)
                self._served[principal] = None
                self._served.move_to_end(principal)
            if queue:
                queues[principal] = queue  # behind all others
        return batch

    def end(self, tickets: Iterable[Ticket], failed: Mapping[str, str]) -> None:
        """Write how tickets ended.

        Args:
            tickets: that were searched.
            failed: why, by id, for those that failed.
        """
        with self._database.write() as session:
            for ticket in tickets:
                row = session.get(TicketRow, (ticket.id, self._place))
                if row is not None:
                    row.message = failed.get(ticket.id, "").replace("\x00", "")
                    row.state = ERROR if ticket.id in failed else COMPLETE

    def forget(self) -> None:
        """Tickets that nobody has fetched for long are gone; their results stay in the cache."""
        with self._database.write() as session:
            old = delete(TicketRow).where(TicketRow.made_at < time.time() - _KEPT)
            session.execute(old.where(TicketRow.place == self._place))
        for principal in list(self._served)[:-1000]:
            del self._served[principal]


def _ticket(row: TicketRow) -> Ticket:
    names = (field.name for field in dataclasses.fields(Ticket))
    return Ticket(**{name: getattr(row, name) for name in names})


def _alike(one: Ticket, other: Ticket) -> bool:
    """Whether two tickets are searched in the same databases, in the same way."""
    return one.wanted == other.wanted and one.expansion == other.expansion


def _limited(what: str, wait: float) -> Problem:
    return Problem(429, "rate_limited", what, next=f"wait {max(1, round(wait))} s", wait=wait)

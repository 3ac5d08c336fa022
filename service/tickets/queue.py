"""Tickets in the database: whichever worker is asked knows them, and one takes them in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from sqlalchemy import delete, func, select, update

from evofeed.service.database.database import Database
from evofeed.service.database.tables import TicketRow
from evofeed.service.problems import Problem

PENDING, RUNNING, COMPLETE, ERROR = "PENDING", "RUNNING", "COMPLETE", "ERROR"
_BATCH: Final = 64
"""Sequences searched together, at least one ticket's."""
_KEEP: Final = 7 * 86_400.0
"""Seconds a ticket may be asked for."""


def wanted_databases(mode: str) -> tuple[str, ...]:
    """The databases that a mode of the protocol searches, where the service has them."""
    words = mode.split("-")
    if mode.startswith("pair"):
        return ("uniref", "env_pair") if "env" in words else ("uniref",)
    env = ("env",) if "env" in words else ()
    return ("uniref", *env, *(() if "notemplates" in words else ("pdb",)))


def expansion(mode: str) -> Literal["filter", "nofilter", "pair"]:
    """What becomes of the members of clusters."""
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
        """Enter a ticket, in place of one of the same name.

        Raises:
            Problem: 429, too many of its tickets wait.
        """
        theirs = (TicketRow.principal == ticket.principal, TicketRow.state == PENDING)
        waiting = select(func.count()).where(self._ours, *theirs)
        with self._database.write() as session:
            self._database.alone(session, f"tickets {self._place}")
            if ticket.state == PENDING and (session.scalar(waiting) or 0) >= self._max_waiting:
                what = f"{self._max_waiting} tickets of yours wait"
                raise Problem(429, "rate_limited", what, next="wait 10 s", wait=10)
            ticket.place, ticket.made_at = self._place, time.time()
            session.merge(ticket)

    def recover(self) -> None:
        """Have searched again what a process that is gone had begun."""
        begun = (self._ours, TicketRow.state == RUNNING)
        with self._database.write() as session:
            session.execute(update(TicketRow).where(*begun).values(state=PENDING))

    def take(self) -> list[TicketRow]:
        """Waiting tickets that want the same search: one of each principal in turn, whoever has
        waited longest since the last turn first."""
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
        """Write how tickets ended."""
        with self._database.write() as session:
            for ticket in tickets:
                if row := session.get(TicketRow, (ticket.id, self._place)):
                    row.message = failed.get(ticket.id, "").replace("\x00", "")
                    row.state = ERROR if ticket.id in failed else COMPLETE

    def forget(self) -> None:
        """Tickets that nobody has fetched for long are gone; their results stay in the cache."""
        old = TicketRow.made_at < time.time() - _KEEP
        with self._database.write() as session:
            session.execute(delete(TicketRow).where(self._ours, old))


def _kind(ticket: TicketRow) -> object:
    """Tickets of one kind are searched in the same databases, in the same way."""
    return wanted_databases(ticket.mode), expansion(ticket.mode)

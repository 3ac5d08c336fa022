"""How much a token may use: jobs at once, chains and uploaded bytes a day."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from evofeed.service.database.tables import JobAttempt, JobRow, TokenRow, UploadRow
from evofeed.service.problems import Problem

_DAY: Final = 86_400.0
ACTIVE: Final = ("queued", "running", "cancelling")


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one principal may use; None is no limit."""

    max_jobs: int | None = None
    """Jobs that wait or run at once."""
    max_chains: int | None = None
    """Chains of its jobs that were worked on within a day."""
    max_bytes: int | None = None
    """Bytes it may upload within a day."""

    def covers(self, other: Quotas) -> bool:
        """True if `other` allows nothing that these do not."""
        pairs = (
            (self.max_jobs, other.max_jobs),
            (self.max_chains, other.max_chains),
            (self.max_bytes, other.max_bytes),
        )
        return all(mine is None or (its is not None and its <= mine) for mine, its in pairs)


NO_QUOTAS: Final = Quotas()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a principal uses now.

    Attributes:
        jobs: jobs that wait or run.
        chains: chains of its jobs of the last day, as far as jobs have counted them.
        oldest: when the first of those jobs ended; None without any.
        nbytes: bytes it has uploaded within the last day.
    """

    jobs: int
    chains: int
    oldest: float | None
    nbytes: int


def family(session: Session, token_id: str) -> list[str]:
    """A token and all that were made with it, and with those."""
    tree = select(TokenRow.id).where(TokenRow.id == token_id).cte("family", recursive=True)
    tree = tree.union(select(TokenRow.id).where(TokenRow.parent == tree.c.id))
    return list(session.scalars(select(tree.c.id))) or [token_id]


def usage(session: Session, principals: Sequence[str]) -> Usage:
    """What jobs of these principals use now: each is charged for what it submits or retries."""
    active = select(func.count()).where(JobRow.charged_to.in_(principals), JobRow.state.in_(ACTIVE))
    day_ago = time.time() - _DAY
    recent = session.execute(
        select(JobAttempt.job_id, JobAttempt.progress, JobAttempt.result, JobAttempt.ended_at)
        .where(JobAttempt.principal.in_(principals))
        .where(JobAttempt.ended_at.is_(None) | (JobAttempt.ended_at > day_ago))
    ).all()
    chains: dict[str, int] = {}
    for job_id, progress, result, _ in recent:  # a job that continues is not counted twice
        count = int((result or progress).get("num_chains", 0))
        chains[job_id] = max(chains.get(job_id, 0), count)
    oldest = min((at for *_, at in recent if at is not None), default=None)
    sent = select(func.sum(UploadRow.nbytes)).where(
        UploadRow.principal.in_(principals), UploadRow.at > day_ago
    )
    return Usage(
        jobs=session.scalar(active) or 0,
        chains=sum(chains.values()),
        oldest=oldest,
        nbytes=int(session.scalar(sent) or 0),
    )


def require_room(session: Session, principal: str) -> None:
    """Refuse one more job to a token that has used up a quota, or whose makers have.

    A job's chains are counted once it has found them, so the last job of a day may
    go past `max_chains`; the next one waits.

    Args:
        session: an open write session, alone with the jobs; the job is added in it.
        principal: who submits or retries.

    Raises:
        Problem: 429, with Retry-After.
    """
    for token in _makers(session, principal):
        _require_room(session, token)


def require_bytes(session: Session, principal: str, nbytes: int) -> None:
    """Refuse an upload that goes past a quota of a token or of its makers.

    Args:
        session: an open session; alone with the uploads where one is entered in it.
        principal: who uploads.
        nbytes: how much.

    Raises:
        Problem: 429, with Retry-After.
    """
    for token in _makers(session, principal):
        if token.max_bytes is None:
            continue
        used = usage(session, family(session, token.id)).nbytes
        if used + nbytes > token.max_bytes:
            raise _used_up(
                f"{used:,} bytes were uploaded with this token within a day, this makes "
                f"{used + nbytes:,}, and it may send {token.max_bytes:,}",
                "send the rest tomorrow",
                _DAY / 24,
            )


def _makers(session: Session, principal: str) -> Iterator[TokenRow]:
    """A token and those it was made with, as far up as there are any."""
    above: str | None = principal
    while above is not None and (token := session.get(TokenRow, above)) is not None:
        yield token
        above = token.parent


def _require_room(session: Session, token: TokenRow) -> None:
    if token.max_jobs is None and token.max_chains is None:
        return
    used = usage(session, family(session, token.id))
    if token.max_jobs is not None and used.jobs >= token.max_jobs:
        raise _used_up(
            f"{used.jobs} jobs of this token and those made with it wait or run, "
            f"and it may have {token.max_jobs}",
            "wait for one to end, or cancel one",
            60.0,
        )
    if token.max_chains is not None and used.chains >= token.max_chains:
        wait = (used.oldest or time.time()) + _DAY - time.time()
        raise _used_up(
            f"jobs of this token had {used.chains} chains within a day, "
            f"and it may have {token.max_chains}",
            f"the next are counted off in {wait / 3600:.1f} h",
            wait,
        )


def _used_up(what: str, what_next: str, wait: float) -> Problem:
    return Problem(
        429,
        "quota_used_up",
        what,
        next=f"{what_next}, or ask whoever runs the service for a larger quota",
        wait=wait,
    )

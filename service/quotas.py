"""How much work a token may have done: jobs at once, chains a day."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from evofeed.service.problems import Problem
from evofeed.service.tables import JobRow, TokenRow

_DAY: Final = 86_400.0
_ACTIVE: Final = ("queued", "running", "cancelling")


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one principal may use; None is no limit."""

    max_jobs: int | None = None
    """Jobs that wait or run at once."""
    max_chains: int | None = None
    """Chains of its jobs that were worked on within a day."""

    def covers(self, other: Quotas) -> bool:
        """True if `other` allows nothing that these do not."""
        pairs = ((self.max_jobs, other.max_jobs), (self.max_chains, other.max_chains))
        return all(mine is None or (its is not None and its <= mine) for mine, its in pairs)


NO_QUOTAS: Final = Quotas()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a principal uses now.

    Attributes:
        jobs: jobs that wait or run.
        chains: chains of its jobs of the last day, as far as jobs have counted them.
        oldest: when the first of those jobs was worked on last; None without any.
    """

    jobs: int
    chains: int
    oldest: float | None


def usage(session: Session, principal: str) -> Usage:
    """What a principal's jobs use now."""
    own = JobRow.principal == principal
    jobs = session.scalar(select(func.count()).where(own, JobRow.state.in_(_ACTIVE))) or 0
    recent = session.execute(
        select(JobRow.progress, JobRow.result, JobRow.updated_at).where(
            own, JobRow.updated_at > time.time() - _DAY
        )
    ).all()
    chains = sum((result or progress).get("num_chains", 0) for progress, result, _ in recent)
    return Usage(jobs, chains, min((at for *_, at in recent), default=None))


def require_room(session: Session, principal: str, quotas: Quotas) -> None:
    """Refuse one more job to a principal that has used up a quota.

    A job's chains are counted once it has found them, so the last job of a day may
    go past `max_chains`; the next one waits.

    Args:
        session: an open write session; the job is added in it.
        principal: whose job it is.
        quotas: what it may use.

    Raises:
        Problem: 429, with Retry-After.
    """
    if quotas == NO_QUOTAS:
        return
    session.get(TokenRow, principal, with_for_update=True)  # PostgreSQL: one submission at a time
    used = usage(session, principal)
    if quotas.max_jobs is not None and used.jobs >= quotas.max_jobs:
        raise _used_up(
            f"{used.jobs} jobs of this token wait or run, and it may have {quotas.max_jobs}",
            "wait for one to end, or cancel one",
            60.0,
        )
    if quotas.max_chains is not None and used.chains >= quotas.max_chains:
        wait = (used.oldest or time.time()) + _DAY - time.time()
        raise _used_up(
            f"jobs of this token had {used.chains} chains within a day, "
            f"and it may have {quotas.max_chains}",
            f"the next are counted off in {wait / 3600:.1f} h",
            wait,
        )


def _used_up(what: str, what_next: str, wait: float) -> Problem:
    return Problem(
        429,
        "quota_used_up",
        what,
        next=f"{what_next}, or ask whoever runs the service for a larger quota",
        headers={"Retry-After": str(max(1, math.ceil(wait)))},
    )

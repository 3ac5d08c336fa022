"""What there is to tell a webhook that it has not been sent: read from what the service keeps
anyway, so that whatever ends a job or moves a ref need not know of webhooks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, String, cast, func, select
from sqlalchemy.orm import Session

from evofeed.service.clock import iso
from evofeed.service.database.tables import (
    DatasetRow,
    DeliveryRow,
    JobAttempt,
    JobChain,
    JobRow,
    RefMove,
    WebhookRow,
)
from evofeed.service.jobs.queue import ENDED

Event = Literal["job.succeeded", "job.failed", "job.cancelled", "ref.moved", "chain.quarantined"]
JOB_ENDS: Final[tuple[Event, ...]] = ("job.succeeded", "job.failed", "job.cancelled")
_NEWS_SECONDS: Final = 86_400.0  # what is older is no news
_CHAINS: Final = 100  # of one message; the rest is in the next one
_PING: Final = "ping"
_Query = TypeVar("_Query", bound=Select)


@dataclass(frozen=True, slots=True)
class News:
    """One message: `subject` and `at` tell it from all others to the same webhook."""

    subject: str
    at: float
    body: dict[str, Any]


def ping(webhook_id: str, key: str) -> News:
    """A message that asks whether messages arrive."""
    now = time.time()
    return News(f"{_PING}-{key}", now, _body(_PING, now, {"webhook": webhook_id}))


def news_for(session: Session, hook: WebhookRow) -> Iterator[News]:
    """What a webhook has not been sent."""
    events = hook.events if hook.events is not None else JOB_ENDS
    if states := [one.removeprefix("job.") for one in events if one.startswith("job.")]:
        yield from _ends(session, hook, states)
    if "ref.moved" in events:
        yield from _moves(session, hook)
    if "chain.quarantined" in events:
        yield from _quarantined(session, hook)


def _ends(session: Session, hook: WebhookRow, states: list[str]) -> Iterator[News]:
    known = _known(hook, JobRow.id, JobRow.updated_at)
    news = _of(
        hook,
        select(JobRow, DatasetRow.name).join(DatasetRow, JobRow.dataset_id == DatasetRow.id),
        JobRow.updated_at,
    )
    wanted = sorted(ENDED & set(states))
    for job, dataset in session.execute(news.where(JobRow.state.in_(wanted), ~known)).all():
        result = {name: job.result.get(name) for name in ("snapshot", "num_good", "num_broken")}
        data = {"job": job.id, "dataset": dataset, "ref": job.spec.get("ref"), **result}
        body = _body(f"job.{job.state}", job.updated_at, data | {"error": job.error})
        yield News(job.id, job.updated_at, body)


def _moves(session: Session, hook: WebhookRow) -> Iterator[News]:
    known = _known(hook, "ref-" + cast(RefMove.id, String), RefMove.moved_at)
    news = (
        select(RefMove, DatasetRow.name)
        .join(DatasetRow, RefMove.dataset_id == DatasetRow.id)
        .where(RefMove.id > hook.after_move)
    )
    news = news.where(~known, RefMove.moved_at > time.time() - _NEWS_SECONDS)
    for move, dataset in session.execute(_datasets(hook, news)).all():
        data = {
            "dataset": dataset,
            "ref": move.ref,
            "digest": move.digest or None,
            "previous": move.previous,
            "principal": move.principal,
            "job": move.job_id,
            "message": move.message,
        }
        yield News(f"ref-{move.id}", move.moved_at, _body("ref.moved", move.moved_at, data))


def _quarantined(session: Session, hook: WebhookRow) -> Iterator[News]:
    """Chains that broke, while their job runs; each once, however often they are written down."""
    of_it = (JobChain.job_id == JobAttempt.job_id, JobChain.attempt == JobAttempt.number)
    counted = (
        select(JobAttempt, DatasetRow.name, func.count(JobChain.id))
        .join(JobRow, JobRow.id == JobAttempt.job_id)
        .join(DatasetRow, DatasetRow.id == JobRow.dataset_id)
        .join(JobChain, of_it[0] & of_it[1] & (JobChain.kind == "broken"))
        .group_by(JobAttempt.id, DatasetRow.name)
    )
    for attempt, dataset, count in session.execute(_of(hook, counted, JobRow.updated_at)).all():
        name = f"{attempt.job_id}.{attempt.number}"
        sent = select(DeliveryRow.body).where(
            DeliveryRow.webhook_id == hook.id, DeliveryRow.subject.startswith(f"{name}.")
        )
        before = [body["data"] for body in session.scalars(sent)]
        if before and max(one["rows"] for one in before) == count:
            continue
        reported = {(c["chain_id"], c["message"]) for one in before for c in one["chains"]}
        rows = session.scalars(
            select(JobChain)
            .where(JobChain.job_id == attempt.job_id, JobChain.attempt == attempt.number)
            .where(JobChain.kind == "broken")
            .order_by(JobChain.id)
        )
        new = [row for row in rows if (row.chain_id, row.message) not in reported]
        if not new:
            continue
        data = {
            "job": attempt.job_id,
            "dataset": dataset,
            "attempt": attempt.number,
            "chains": [
                {"chain_id": row.chain_id, "type": row.type, "message": row.message}
                for row in new[:_CHAINS]
            ],
            "rows": count if len(new) <= _CHAINS else len(reported) + _CHAINS,
        }
        body = _body("chain.quarantined", time.time(), data)
        yield News(f"{name}.{len(reported)}", attempt.started_at, body)


def _body(kind: str, at: float, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "timestamp": iso(at), "data": data}


def _known(hook: WebhookRow, subject: Any, at: Any) -> ColumnElement[bool]:
    sent = select(DeliveryRow.id).where(
        DeliveryRow.webhook_id == hook.id, DeliveryRow.subject == subject, DeliveryRow.at == at
    )
    return sent.exists()


def _of(hook: WebhookRow, query: _Query, changed: Any) -> _Query:
    """Only what changed since the webhook was made, and is news."""
    return _datasets(hook, query.where(changed > max(hook.created_at, time.time() - _NEWS_SECONDS)))


def _datasets(hook: WebhookRow, query: _Query) -> _Query:
    return query if hook.datasets is None else query.where(DatasetRow.name.in_(hook.datasets))

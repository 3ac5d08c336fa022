"""Webhooks: notified of jobs that end, refs that move, chains that break."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field
from sqlalchemy import select
from starlette.responses import Response

from evofeed.errors import ServiceError
from evofeed.service.access.audit import record
from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri
from evofeed.service.database.tables import DeliveryRow, WebhookRow
from evofeed.service.names import NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.body import Body, Instant, view_of
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.state import Service
from evofeed.service.webhooks.news import Event, ping
from evofeed.service.webhooks.notifier import add_webhook, enter, send_again
from evofeed.service.webhooks.outbound import check_url

router = make_router("/v1/webhooks", "webhooks")
DeliveryId = Annotated[str, Path(pattern=r"^msg_[0-9a-f]{24}$", description="message id")]
WebhookId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="webhook id")]
_MAX_WEBHOOKS = 20  # of one principal
_SHOWN = 50


class NewWebhook(
    Body,
    json_schema_extra={
        "examples": [{"url": "https://hooks.example.org/evofeed", "datasets": ["pdb"]}]
    },
):
    """Whom to tell, and of what."""

    events: list[Event] | None = Field(
        None, min_length=1, max_length=5, description="what to tell of; null: how jobs end"
    )
    url: Uri = Field(description="https, at a host of EVOFEED_WEBHOOK_HOSTS")
    datasets: list[NewName] | None = Field(
        None, max_length=1000, description="of which; null for all that the token is for"
    )


class WebhookView(BaseModel):
    """A webhook without its secret."""

    id: str
    url: str
    datasets: list[str] | None
    events: list[str] | None = Field(description="null: how jobs end")
    created_at: Instant
    disabled: str = Field(description="why nothing is sent any more; empty: it is")


class MadeWebhook(WebhookView):
    """A new webhook; the secret its messages are signed with is shown this once."""

    secret: str


class WebhookList(BaseModel):
    """The webhooks of the token that asks."""

    webhooks: list[WebhookView]


class Delivery(BaseModel):
    """One message."""

    id: str
    type: str
    job: str = Field(description="the job it is about; empty: none")
    attempts: int
    next_attempt_at: Instant | None = Field(description="null: it has arrived, or was given up")
    outcome: str = Field(description="of the last attempt")


class DeliveryList(BaseModel):
    """The last messages of a webhook, newest first."""

    deliveries: list[Delivery]


@router.post("", status_code=201)
@scope("jobs", repeatable=False)
def make_webhook(
    service: ServiceDep, principal: PrincipalDep, new: NewWebhook, response: Response
) -> MadeWebhook:
    """Be notified of what happens to these datasets from now on: ends of jobs, moves of refs
    (needs `read`), chains that break.
    """
    if "ref.moved" in (new.events or ()):
        principal.require("read")
    for name in new.datasets or ():
        principal.require_dataset(name)
    try:
        check_url(new.url, service.settings.webhook_hosts)
    except ServiceError as error:
        raise Problem(
            403,
            "place_not_allowed",
            error.message,
            next="ask whoever runs the service to add the host to EVOFEED_WEBHOOK_HOSTS",
        ) from None
    datasets = new.datasets if new.datasets is not None else _sorted(principal.datasets)
    if len(_own(service, principal)) >= _MAX_WEBHOOKS:
        raise Problem(
            409,
            "too_many_webhooks",
            f"this token has {_MAX_WEBHOOKS} webhooks already",
            next="remove one with DELETE /v1/webhooks/{id}",
        )
    row, secret = add_webhook(
        service.database, new.url, datasets, principal.id, list(new.events) if new.events else None
    )
    response.headers["Cache-Control"] = "no-store"
    return view_of(MadeWebhook, row, secret=secret)


@router.get("")
@scope("jobs")
def list_webhooks(service: ServiceDep, principal: PrincipalDep) -> WebhookList:
    """Those of the token that asks."""
    return WebhookList(webhooks=[view_of(WebhookView, row) for row in _own(service, principal)])


@router.get("/{webhook_id}/deliveries")
@scope("jobs")
def list_deliveries(
    service: ServiceDep, principal: PrincipalDep, webhook_id: WebhookId
) -> DeliveryList:
    """What was sent lately, and what came of it."""
    _require_own(service, principal, webhook_id)
    query = (
        select(DeliveryRow)
        .where(DeliveryRow.webhook_id == webhook_id)
        .order_by(DeliveryRow.at.desc())
        .limit(_SHOWN)
    )
    with service.database.read() as session:
        rows = list(session.scalars(query))
    return DeliveryList(deliveries=[_delivery(row) for row in rows])


@router.post("/{webhook_id}/ping", status_code=202)
@scope("jobs")
def ping_webhook(service: ServiceDep, principal: PrincipalDep, webhook_id: WebhookId) -> Delivery:
    """Send a `ping`; `.../deliveries` shows what came of it."""
    _require_own(service, principal, webhook_id)
    row = enter(service.database, webhook_id, ping(webhook_id, secrets.token_hex(8)))
    assert row is not None  # nobody else has its key
    return _delivery(row)


@router.post("/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=202)
@scope("jobs")
def redeliver(
    service: ServiceDep, principal: PrincipalDep, webhook_id: WebhookId, delivery_id: DeliveryId
) -> Delivery:
    """Send a message again, under the id that it has."""
    _require_own(service, principal, webhook_id)
    row = send_again(service.database, webhook_id, delivery_id)
    if row is None:
        what = f"no message {delivery_id!r} of this webhook"
        raise Problem(404, "not_found", what, next="list: GET /v1/webhooks/{id}/deliveries")
    return _delivery(row)


@router.delete("/{webhook_id}", status_code=204, response_class=Response)
@scope("jobs")
def remove_webhook(service: ServiceDep, principal: PrincipalDep, webhook_id: WebhookId) -> None:
    """Send it nothing more."""
    _require_own(service, principal, webhook_id)
    with service.database.write() as session:
        if row := session.get(WebhookRow, webhook_id):
            session.delete(row)
            record(session, principal.id, "webhook.remove", webhook_id)


def _own(service: Service, principal: Principal) -> list[WebhookRow]:
    query = select(WebhookRow).where(WebhookRow.principal == principal.id)
    with service.database.read() as session:
        return list(session.scalars(query.order_by(WebhookRow.created_at)))


def _require_own(service: Service, principal: Principal, webhook_id: str) -> None:
    if all(row.id != webhook_id for row in _own(service, principal)):
        raise Problem(404, "not_found", f"no webhook {webhook_id!r}", next="list: GET /v1/webhooks")


def _delivery(row: DeliveryRow) -> Delivery:
    job = row.body["data"].get("job") or ""
    return view_of(Delivery, row, type=row.body["type"], job=job, next_attempt_at=row.due_at)


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return sorted(names) if names is not None else None

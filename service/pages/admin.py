"""Tokens, webhooks and the audit."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import Path, Query, Request
from starlette.responses import HTMLResponse, Response

from evofeed.service.access.auth import SCOPES
from evofeed.service.pages.page import render, see_other
from evofeed.service.requests.forms import FormDep, filled
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes import tokens, webhooks
from evofeed.service.webhooks.news import Event

router = make_router("/ui", tag="pages")
_DAY = 86_400.0
EVENTS = get_args(Event)
After = Annotated[str, Query(pattern=r"^[0-9a-f]{0,16}$")]


@router.get("/tokens", response_class=HTMLResponse, include_in_schema=False)
@scope("admin")
def tokens_page(
    request: Request, service: ServiceDep, principal: PrincipalDep, after: After = ""
) -> HTMLResponse:
    """Every token, and a form for a new one."""
    page = tokens.list_tokens(service, principal, after)
    return render("tokens.html", request, principal, page=page, made=None, scopes=SCOPES)


@router.post("/tokens", response_class=HTMLResponse, include_in_schema=False)
@scope("admin", form=True)
def make_token(
    request: Request, service: ServiceDep, principal: PrincipalDep, fields: FormDep
) -> HTMLResponse:
    """A new token, whose text this answer alone shows."""
    days = fields.number("days")
    values: dict[str, Any] = {
        "label": fields.text("label"),
        "scopes": fields.all("scopes"),
        "datasets": fields.words("datasets") or None,
        "roots": fields.all("roots") or None,
        "seconds": None if days is None else float(days) * _DAY,
        "max_jobs": fields.number("max_jobs"),
        "max_chains": fields.number("max_chains"),
        "max_bytes": fields.number("max_bytes"),
    }
    made = tokens.make_token(service, principal, filled(tokens.NewToken, values), Response())
    page = tokens.list_tokens(service, principal)
    return render("tokens.html", request, principal, page=page, made=made, scopes=SCOPES)


@router.post("/tokens/{token_id}/revoke", include_in_schema=False)
@scope("admin", form=True)
def revoke_token(
    service: ServiceDep,
    principal: PrincipalDep,
    token_id: Annotated[str, Path(pattern=r"^([0-9a-f]{16}|local)$")],
) -> Response:
    """Revoke a token and those made with it."""
    tokens.remove_token(service, principal, token_id)
    return see_other("/ui/tokens")


@router.get("/audit", response_class=HTMLResponse, include_in_schema=False)
@scope("admin")
def audit_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    before: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> HTMLResponse:
    """Who did what, newest first."""
    page = tokens.read_audit(service, principal, before)
    return render("audit.html", request, principal, page=page, before=before)


@router.get("/webhooks", response_class=HTMLResponse, include_in_schema=False)
@scope("jobs")
def webhooks_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    shown: Annotated[str, Query(pattern=r"^([0-9a-f]{16})?$")] = "",
) -> HTMLResponse:
    """The webhooks of the token that signed in, and what became of the messages of one."""
    hooks = webhooks.list_webhooks(service, principal).webhooks
    sent = webhooks.list_deliveries(service, principal, shown).deliveries if shown else []
    return render(
        "webhooks.html",
        request,
        principal,
        hooks=hooks,
        made=None,
        shown=shown,
        sent=sent,
        events=EVENTS,
    )


@router.post("/webhooks", response_class=HTMLResponse, include_in_schema=False)
@scope("jobs", form=True)
def make_webhook(
    request: Request, service: ServiceDep, principal: PrincipalDep, fields: FormDep
) -> HTMLResponse:
    """A new webhook, whose secret this answer alone shows."""
    values = {
        "url": fields.text("url"),
        "datasets": fields.words("datasets") or None,
        "events": fields.all("events") or None,
    }
    new = filled(webhooks.NewWebhook, values)
    made = webhooks.make_webhook(service, principal, new, Response())
    hooks = webhooks.list_webhooks(service, principal).webhooks
    return render(
        "webhooks.html",
        request,
        principal,
        hooks=hooks,
        made=made,
        shown="",
        sent=[],
        events=EVENTS,
    )


@router.post("/webhooks/{webhook_id}/remove", include_in_schema=False)
@scope("jobs", form=True)
def remove_webhook(
    service: ServiceDep, principal: PrincipalDep, webhook_id: webhooks.WebhookId
) -> Response:
    """Send it nothing more."""
    webhooks.remove_webhook(service, principal, webhook_id)
    return see_other("/ui/webhooks")


@router.post("/webhooks/{webhook_id}/ping", include_in_schema=False)
@scope("jobs", form=True)
def ping_webhook(
    service: ServiceDep, principal: PrincipalDep, webhook_id: webhooks.WebhookId
) -> Response:
    """Send it a message that says nothing."""
    webhooks.ping_webhook(service, principal, webhook_id)
    return see_other(f"/ui/webhooks?shown={webhook_id}")


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", include_in_schema=False)
@scope("jobs", form=True)
def redeliver(
    service: ServiceDep,
    principal: PrincipalDep,
    webhook_id: webhooks.WebhookId,
    delivery_id: webhooks.DeliveryId,
) -> Response:
    """Send a message again."""
    webhooks.redeliver(service, principal, webhook_id, delivery_id)
    return see_other(f"/ui/webhooks?shown={webhook_id}")

"""The protocol of ColabFold's MSA server, so that its clients can ask this service instead."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from evofeed.service.database.tables import TicketRow
from evofeed.service.problems import Problem, refusals
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.tickets import COMPLETE, form_of

router = make_router("", "tickets", refusals("application/json", "TicketView"))

TicketId = Annotated[str, Path(pattern=r"^[0-9a-f]{43}$", description="of a ticket")]
TemplateNames = Annotated[
    str, Path(pattern=r"^[0-9A-Za-z_.,-]{1,2000}$", description="such as 1abc_A, commas between")
]
_FIELDS = {
    "q": {"type": "string", "description": "sequences as FASTA"},
    "mode": {"type": "string", "description": "env, all, pairgreedy, ..."},
}
_FORM: dict[str, Any] = {"type": "object", "required": ["q"], "properties": _FIELDS}


class TicketView(BaseModel):
    """A ticket, or why there is none: the protocol answers both in one form."""

    id: str
    status: Literal["PENDING", "RUNNING", "COMPLETE", "ERROR", "RATELIMIT", "MAINTENANCE"]
    detail: str = Field("", description="what went wrong, if something did")


_SUBMIT: dict[str, Any] = {
    "response_model": TicketView,
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": _FORM}
                for kind in ("application/x-www-form-urlencoded", "multipart/form-data")
            },
        }
    },
}
_TAR: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.post("/ticket/msa", name="post_msa", **_SUBMIT)
@router.post("/ticket/pair", name="post_pair", **_SUBMIT)
@scope("jobs")
async def post_ticket(ctx: Context) -> Response:
    """Hand in sequences; COMPLETE at once if their alignments are known.

    `pair`: the chains of a complex, for rows that are paired by organism.
    """
    request = ctx.request
    form = form_of(request.headers.get("content-type", ""), await request.body())
    mode = form.get("mode", "pairgreedy" if request.url.path == "/ticket/pair" else "env")
    submit = ctx.service.tickets.submit
    return _ticket(await run_in_threadpool(submit, ctx.caller, form.get("q", ""), mode))


@router.get("/ticket/{ticket_id}", response_model=TicketView)
@scope("jobs")
def get_ticket(ctx: Context, ticket_id: TicketId) -> Response:
    """State of a ticket."""
    ticket = ctx.service.tickets.get(ticket_id, ctx.caller)
    if ticket is None:  # `UNKNOWN` would have clients ask forever
        return _answer({"id": ticket_id, "status": "ERROR", "detail": "no such ticket"}, 404)
    return _ticket(ticket)


@router.get("/result/download/{ticket_id}", response_class=Response, responses=_TAR)
@scope("jobs")
def download(ctx: Context, ticket_id: TicketId) -> Response:
    """The result of a complete ticket, as tar.gz."""
    ticket = ctx.service.tickets.get(ticket_id, ctx.caller)
    if ticket is None or ticket.state != COMPLETE:
        message, hint = "no complete ticket of that id", "ask GET /ticket/{id} first"
        raise Problem(404, "not_found", message, next=hint)
    return Response(ctx.service.tickets.result(ticket), media_type="application/gzip")


@router.get("/template/{names}", response_class=Response, responses=_TAR)
@scope("jobs")
def get_templates(ctx: Context, names: TemplateNames) -> Response:
    """Alignments and structures of the templates that a result names, as tar.gz."""
    archive = ctx.service.tickets.templates(names.split(","))
    return Response(archive, media_type="application/gzip")


def _ticket(ticket: TicketRow) -> Response:
    view = {"id": ticket.id, "status": ticket.state}
    return _answer(view | ({"detail": ticket.message} if ticket.message else {}))


def _answer(view: dict[str, str], status: int = 200) -> Response:
    return JSONResponse(view, status, {"Cache-Control": "no-store"})

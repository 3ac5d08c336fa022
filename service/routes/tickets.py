"""The protocol of ColabFold's MSA server, so that its clients can ask this service instead."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import Path, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from evofeed.errors import InputError
from evofeed.service.access.auth import LOCAL, Principal
from evofeed.service.problems import Problem
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.tickets.queue import COMPLETE, Ticket

router = make_router("", "tickets")

TicketId = Annotated[str, Path(pattern=r"^[0-9a-f]{43}$", description="of a ticket")]
TemplateNames = Annotated[
    str,
    Path(pattern=r"^[0-9A-Za-z_.,-]{1,2000}$", description="such as 1abc_A, commas between"),
]
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-www-form-urlencoded": {
                "schema": {
                    "type": "object",
                    "required": ["q"],
                    "properties": {
                        "q": {"type": "string", "description": "sequences as FASTA"},
                        "mode": {"type": "string", "description": "env, all, pairgreedy, ..."},
                    },
                }
            }
        },
    }
}


class TicketView(BaseModel):
    """A ticket, or why there is none: the protocol answers both in one form."""

    id: str
    status: Literal["PENDING", "RUNNING", "COMPLETE", "ERROR", "RATELIMIT", "MAINTENANCE"]
    detail: str = Field("", description="what went wrong, if something did")


_REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"model": TicketView} for status in (422, 429, 503)
}
_TAR: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.post("/ticket/msa", openapi_extra=_FORM, response_model=TicketView, responses=_REFUSED)
@scope("jobs", counted=False, repeatable=False)
async def post_msa(request: Request, service: ServiceDep, principal: PrincipalDep) -> Response:
    """Hand in sequences; COMPLETE at once if their alignments are known."""
    return await _submit(request, service, principal, "env")


@router.post("/ticket/pair", openapi_extra=_FORM, response_model=TicketView, responses=_REFUSED)
@scope("jobs", counted=False, repeatable=False)
async def post_pair(request: Request, service: ServiceDep, principal: PrincipalDep) -> Response:
    """Hand in the chains of a complex, for rows that are paired by organism."""
    return await _submit(request, service, principal, "pairgreedy")


@router.get(
    "/ticket/{ticket_id}", response_model=TicketView, responses={404: {"model": TicketView}}
)
@scope("jobs", counted=False)
def get_ticket(
    request: Request, service: ServiceDep, principal: PrincipalDep, ticket_id: TicketId
) -> Response:
    """State of a ticket."""
    ticket = service.tickets.get(ticket_id, _owner(request, principal))
    if ticket is None:  # `UNKNOWN` would have clients ask forever
        return _answer({"id": ticket_id, "status": "ERROR", "detail": "no such ticket"}, 404)
    return _answer(_view(ticket))


@router.get("/result/download/{ticket_id}", response_class=Response, responses=_TAR)
@scope("jobs", counted=False)
def download(
    request: Request, service: ServiceDep, principal: PrincipalDep, ticket_id: TicketId
) -> Response:
    """What a complete ticket asked for, as tar.gz."""
    ticket = service.tickets.get(ticket_id, _owner(request, principal))
    if ticket is None or ticket.state != COMPLETE:
        raise Problem(
            404, "not_found", "no complete ticket of that id", next="ask GET /ticket/{id} first"
        )
    return Response(service.tickets.result(ticket), media_type="application/gzip")


@router.get("/template/{names}", response_class=Response, responses=_TAR)
@scope("jobs", counted=False)
def get_templates(service: ServiceDep, principal: PrincipalDep, names: TemplateNames) -> Response:
    """Alignments and structures of the templates that a result names, as tar.gz."""
    found = service.tickets.templates(names.split(","))
    return Response(found, media_type="application/gzip")


async def _submit(
    request: Request, service: ServiceDep, principal: Principal, mode: str
) -> Response:
    owner = _owner(request, principal)
    try:
        form = parse_qs((await request.body()).decode("ascii"), max_num_fields=16)
        text, mode = form.get("q", [""])[0], form.get("mode", [mode])[0]
        service.limiter.spend(owner)
        quota = principal.quotas.max_chains
        ticket = await run_in_threadpool(service.tickets.submit, owner, text, mode, quota)
    except Problem as problem:  # in the clients' words: they look for `status`
        status = "RATELIMIT" if problem.status == 429 else "MAINTENANCE"
        body = {"id": "", "status": status, "detail": problem.message}
        return _answer(body, problem.status, problem.headers)
    except (InputError, ValueError) as error:
        return _answer({"id": "", "status": "ERROR", "detail": str(error)}, 422)
    return _answer(_view(ticket))


def _view(ticket: Ticket) -> dict[str, Any]:
    view = {"id": ticket.id, "status": ticket.state}
    return view | ({"detail": ticket.message} if ticket.message else {})


def _owner(request: Request, principal: Principal) -> str:
    """Whose a ticket is; without tokens, the machine that asks."""
    if principal is not LOCAL:
        return principal.id
    return request.client.host if request.client else "unknown"


def _answer(body: dict[str, Any], status: int = 200, headers: Any = None) -> Response:
    return JSONResponse(body, status, {"Cache-Control": "no-store", **(headers or {})})

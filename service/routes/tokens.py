"""Tokens and the audit: what only `admin` may touch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select
from starlette.responses import Response

from evofeed.service.access.auth import SCOPES, create_token, revoke_token
from evofeed.service.access.places import Uri, below, canonical_place
from evofeed.service.access.quotas import Quotas, family, usage
from evofeed.service.database.tables import AuditRow, TokenRow
from evofeed.service.names import NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.body import Body, Instant, view_of
from evofeed.service.requests.routing import Limit, PrincipalDep, ServiceDep, make_router, scope

router = make_router("/v1", "tokens")
Scope = Literal["read", "publish", "jobs", "admin"]
Label = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
]


class NewToken(
    Body,
    json_schema_extra={
        "examples": [
            {"label": "trainer", "scopes": ["read"], "datasets": ["pdb"], "seconds": 2_592_000}
        ]
    },
):
    """A token to make."""

    label: Label = Field(description="what it is for")
    scopes: list[Scope] = Field(min_length=1, max_length=4)
    datasets: list[NewName] | None = Field(None, max_length=1000, description="null for all")
    roots: list[Uri] | None = Field(
        None, max_length=100, description="places it may name; null for all that are open"
    )
    seconds: float | None = Field(None, gt=0, le=10 * 366 * 86400, description="null: no expiry")
    max_jobs: int | None = Field(None, ge=0, lt=2**31, description="waiting or running at once")
    max_chains: int | None = Field(None, ge=0, lt=2**31, description="of its jobs within a day")
    max_bytes: int | None = Field(None, ge=0, lt=2**53, description="uploaded within a day")


class MadeToken(BaseModel):
    """A new token; its text is shown this once."""

    id: str
    token: str


class TokenView(BaseModel):
    """A token without its secret."""

    id: str
    label: str
    scopes: list[str]
    datasets: list[str] | None
    roots: list[str] | None
    parent: str | None = Field(description="the token it was made with, and ends with")
    max_jobs: int | None
    max_chains: int | None
    max_bytes: int | None
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None
    last_used_at: Instant | None = Field(description="to the minute")


class TokenList(BaseModel):
    """Tokens, oldest first."""

    tokens: list[TokenView]
    next: str | None = Field(description="`after` of the next page; null at the end")


class Me(BaseModel):
    """The caller as the service sees it."""

    id: str = Field(description="of its token; `local` where none is asked for")
    scopes: list[str]
    datasets: list[str] | None = Field(description="null for all")
    roots: list[str] | None = Field(description="places it may name; null for all that are open")
    max_jobs: int | None
    jobs: int = Field(description="of it and of tokens made with it, waiting or running now")
    max_chains: int | None
    chains: int = Field(description="of their jobs of the last day")
    max_bytes: int | None
    nbytes: int = Field(description="uploaded by them within the last day")


class AuditLine(BaseModel):
    """Who did what."""

    id: int
    at: Instant
    principal: str
    action: str
    subject: str
    detail: dict[str, Any]


class AuditPage(BaseModel):
    """Lines of the audit, newest first."""

    lines: list[AuditLine]
    next: int | None = Field(description="`before` of the next page; null at the end")


@router.post("/tokens", status_code=201)
@scope("admin", repeatable=False)
def make_token(
    service: ServiceDep, principal: PrincipalDep, new: NewToken, response: Response
) -> MadeToken:
    """A new token, no wider than the one that asks."""
    for wanted in new.scopes:
        principal.require(wanted)
    if new.datasets is None:
        principal.require_all_datasets()
    for name in new.datasets or ():
        principal.require_dataset(name)
    roots = new.roots if new.roots is not None else principal.roots
    for root in roots or ():
        place = canonical_place(root)
        if principal.roots is not None and not any(below(place, r) for r in principal.roots):
            raise Problem(
                403, "forbidden", f"this token's roots do not include {root!r}", next="GET /v1/me"
            )
    quotas = Quotas(new.max_jobs, new.max_chains, new.max_bytes)
    if not principal.quotas.covers(quotas):
        raise Problem(
            403,
            "forbidden",
            "this token has quotas, and what it makes must have some within them",
            next="give max_jobs, max_chains and max_bytes as `GET /v1/me` shows them, or less",
        )
    response.headers["Cache-Control"] = "no-store"
    token_id, text = create_token(
        service.database,
        label=new.label,
        scopes=list(new.scopes),
        datasets=list(new.datasets) if new.datasets is not None else None,
        roots=[canonical_place(root) for root in roots] if roots is not None else None,
        seconds=new.seconds,
        quotas=quotas,
        principal=principal.id,
    )
    return MadeToken(id=token_id, token=text)


@router.get("/tokens")
@scope("admin")
def list_tokens(
    service: ServiceDep,
    principal: PrincipalDep,
    after: Annotated[
        str, Query(pattern=r"^[0-9a-f]{0,16}$", description="`next` of the page before")
    ] = "",
    limit: Limit = 100,
) -> TokenList:
    """Every token there has been, by id."""
    principal.require_all_datasets()
    query = select(TokenRow).where(TokenRow.id > after).order_by(TokenRow.id).limit(limit + 1)
    with service.database.read() as session:
        rows = list(session.scalars(query))
    views = [view_of(TokenView, row) for row in rows[:limit]]
    return TokenList(tokens=views, next=rows[limit - 1].id if len(rows) > limit else None)


@router.get("/me")
@scope(*SCOPES)
def who_am_i(service: ServiceDep, principal: PrincipalDep) -> Me:
    """What the token that asks may do, and how much of its quotas is used."""
    with service.database.read() as session:
        used = usage(session, family(session, principal.id))
    return Me(
        id=principal.id,
        scopes=sorted(principal.scopes),
        datasets=sorted(principal.datasets) if principal.datasets is not None else None,
        roots=list(principal.roots) if principal.roots is not None else None,
        max_jobs=principal.quotas.max_jobs,
        jobs=used.jobs,
        max_chains=principal.quotas.max_chains,
        chains=used.chains,
        max_bytes=principal.quotas.max_bytes,
        nbytes=used.nbytes,
    )


@router.delete("/tokens/{token_id}", status_code=204, response_class=Response)
@scope("admin")
def remove_token(
    service: ServiceDep,
    principal: PrincipalDep,
    token_id: Annotated[str, Path(pattern=r"^([0-9a-f]{16}|local)$", description="token id")],
) -> None:
    """Revoke a token: it is worthless from now on."""
    principal.require_all_datasets()
    revoke_token(service.database, token_id, principal.id)


@router.get("/audit")
@scope("admin")
def read_audit(
    service: ServiceDep,
    principal: PrincipalDep,
    before: Annotated[
        int | None, Query(ge=1, lt=2**31, description="`next` of the page before")
    ] = None,
    limit: Limit = 100,
) -> AuditPage:
    """Who did what, newest first."""
    principal.require_all_datasets()
    query = select(AuditRow).order_by(AuditRow.id.desc())
    if before is not None:
        query = query.where(AuditRow.id < before)
    with service.database.read() as session:
        rows = list(session.scalars(query.limit(limit + 1)))
    lines = [view_of(AuditLine, row) for row in rows[:limit]]
    return AuditPage(lines=lines, next=rows[limit - 1].id if len(rows) > limit else None)

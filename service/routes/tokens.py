"""Tokens and the audit: what only `admin` may touch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select
from starlette.responses import Response

from evofeed.base.within import below
from evofeed.service.access.auth import SCOPES, create_token, revoke_token, tokens_after
from evofeed.service.access.places import Uri, canonical_root
from evofeed.service.database.tables import AuditRow
from evofeed.service.names import Body, NewName, view_of
from evofeed.service.problems import Problem
from evofeed.service.requests.routing import BeforeRow, Context, Limit, make_router, scope
from evofeed.service.views import Token

router = make_router("/v1", "tokens")
Scope = Literal["read", "publish", "jobs", "admin"]
Label = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
]
TokenId = Annotated[str, Path(pattern=r"^([0-9a-f]{16}|local)$", description="token id")]
After = Annotated[str, Query(pattern=r"^[0-9a-f]{0,16}$", description="`next` of the page before")]


class NewToken(
    Body,
    json_schema_extra={
        "examples": [
            {"label": "trainer", "scopes": ["read"], "datasets": ["pdb"], "seconds": 2_592_000}
        ]
    },
):
    """A token to make."""

    label: Label = Field(description="purpose of the token")
    scopes: list[Scope] = Field(min_length=1, max_length=4)
    datasets: list[NewName] | None = Field(None, max_length=1000, description="null for all")
    roots: list[Uri] | None = Field(
        None, max_length=100, description="places it may name; null for all that are open"
    )
    seconds: float | None = Field(None, gt=0, le=10 * 366 * 86400, description="null: no expiry")


class MadeToken(BaseModel):
    """A new token; its text is shown this once."""

    id: str
    token: str


class TokenList(BaseModel):
    """Tokens, oldest first."""

    tokens: list[Token]
    next: str | None = Field(description="`after` of the next page; null at the end")


class Me(BaseModel):
    """The caller as the service sees it."""

    id: str = Field(description="of its token; `local` where none is asked for")
    scopes: list[str]
    datasets: list[str] | None = Field(description="null for all")
    roots: tuple[str, ...] | None = Field(
        description="places it may name; null for all that are open"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """Who did what."""

    id: int
    at: str
    principal: str
    action: str
    subject: str
    detail: dict[str, Any]


class AuditPage(BaseModel):
    """Lines of the audit, newest first."""

    lines: list[AuditLine]
    next: int | None = Field(description="`before` of the next page; null at the end")


@router.post("/tokens", status_code=201)
@scope("admin")
def make_token(ctx: Context, new: NewToken, response: Response) -> MadeToken:
    """A new token, no wider than the one that asks."""
    by = ctx.principal
    for scope_name in new.scopes:
        by.require(scope_name)
    if new.datasets is None:
        by.require_all_datasets()
    for name in new.datasets or ():
        by.require_dataset(name)
    roots = by.roots if new.roots is None else [canonical_root(root) for root in new.roots]
    for folder in roots or ():
        if by.roots is not None and not any(below(folder, root) for root in by.roots):
            message = f"this token's roots do not include {folder!r}"
            raise Problem(403, "forbidden", message, next="GET /v1/me")
    response.headers["Cache-Control"] = "no-store"
    token_id, text = create_token(
        ctx.service.database, label=new.label, scopes=new.scopes, datasets=new.datasets,
        roots=roots, seconds=new.seconds, principal=by.id,
    )  # fmt: skip
    return MadeToken(id=token_id, token=text)


@router.get("/tokens")
@scope("admin")
def list_tokens(ctx: Context, after: After = "", limit: Limit = 100) -> TokenList:
    """Every token there has been, by id."""
    ctx.principal.require_all_datasets()
    tokens = tokens_after(ctx.service.database, after, limit + 1)
    return TokenList(tokens=tokens[:limit], next=tokens[limit - 1].id if tokens[limit:] else None)


@router.get("/me")
@scope(*SCOPES)
def who_am_i(ctx: Context) -> Me:
    """The rights of the token that asks."""
    scopes, datasets = sorted(ctx.principal.scopes), ctx.principal.datasets
    names = None if datasets is None else sorted(datasets)
    return Me(id=ctx.principal.id, scopes=scopes, datasets=names, roots=ctx.principal.roots)


@router.delete("/tokens/{token_id}", status_code=204, response_class=Response)
@scope("admin")
def remove_token(ctx: Context, token_id: TokenId) -> None:
    """Revoke a token: it is worthless from now on."""
    ctx.principal.require_all_datasets()
    revoke_token(ctx.service.database, token_id, ctx.principal.id)
    ctx.service.authority.forget()


@router.get("/audit")
@scope("admin")
def read_audit(ctx: Context, before: BeforeRow = None, limit: Limit = 100) -> AuditPage:
    """Who did what, newest first."""
    ctx.principal.require_all_datasets()
    query = select(AuditRow).order_by(AuditRow.id.desc())
    if before is not None:
        query = query.where(AuditRow.id < before)
    with ctx.service.database.read() as session:
        rows = list(session.scalars(query.limit(limit + 1)))
    lines = [view_of(AuditLine, row) for row in rows[:limit]]
    return AuditPage(lines=lines, next=rows[limit - 1].id if len(rows) > limit else None)

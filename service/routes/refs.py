"""Refs: read, move by If-Match, list, history."""

from __future__ import annotations

import re
from typing import Annotated, Final

import orjson
from fastapi import Header, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from evofeed.base.errors import DatasetMissing, RefConflict
from evofeed.service.access.places import require_root
from evofeed.service.names import Body, DatasetName, DigestValue, Message, RefName, view_of
from evofeed.service.problems import Problem
from evofeed.service.refs import Policy, Refs
from evofeed.service.requests.ranges import matches
from evofeed.service.requests.routing import BeforeRow, Context, Limit, make_router, scope
from evofeed.service.views import Move, RefState
from evofeed.store.inner import Ref

router = make_router("/v1/datasets/{name}/refs", "refs")
_NO_DIGEST: Final = "-"  # no ref is ever there
IfMatch = Annotated[
    str | None, Header(max_length=200, description="the digest it points at, in quotes")
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=200, description="`*`: it does not exist yet")
]


class RefList(BaseModel):
    """All refs of a dataset, by name."""

    refs: list[RefState]


class RefTarget(Body, json_schema_extra={"examples": [{"digest": "0" * 64, "message": "May"}]}):
    """Where a ref shall point."""

    digest: DigestValue
    message: Message = Field("", description="why, for the history")


class History(BaseModel):
    """Moves of a ref, newest first: each begins where the one before it ended."""

    moves: list[Move]
    next: int | None = Field(description="`before` of the next page; null at the end")


@router.get("")
@scope("read")
def list_refs(ctx: Context, name: DatasetName) -> RefList:
    """All refs."""
    return RefList(refs=[view_of(RefState, ref) for ref in ctx.service.catalog.view(name).refs()])


@router.get("/{ref}", response_model=RefState)
@scope("read")
def get_ref(ctx: Context, name: DatasetName, ref: RefName) -> Response:
    """Where a ref points now; send its ETag back in If-None-Match to poll cheaply."""
    current = ctx.service.refs.get(name, ref)
    headers = {"ETag": f'"{current.digest}"', "Cache-Control": "no-cache"}
    if (etag := ctx.request.headers.get("if-none-match")) and matches(etag, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    view = {"name": ref, "digest": current.digest, "updated_at": current.updated_at}
    return Response(orjson.dumps(view), 200, headers, "application/json")


@router.put("/{ref}")
@scope("publish")
def put_ref(
    ctx: Context,
    name: DatasetName,
    ref: RefName,
    target: RefTarget,
    response: Response,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> RefState:
    """Point a ref at a snapshot, if it has not moved meanwhile.

    `If-Match: "DIGEST"` moves a ref that points there; `If-None-Match: *` makes a
    new one. One of the two is required.
    """
    expect = (if_match, if_none_match)
    moved = _moved(ctx, name, ref, target.digest, expect, target.message)
    response.headers["ETag"] = f'"{moved.digest}"'
    return RefState(name=ref, digest=moved.digest, updated_at=moved.updated_at)


@router.delete("/{ref}", status_code=204, response_class=Response)
@scope("publish")
def delete_ref(
    ctx: Context,
    name: DatasetName,
    ref: RefName,
    if_match: IfMatch = None,
    message: Annotated[Message, Query(description="why, for the history")] = "",
) -> None:
    """Delete a ref that still points at `If-Match: "DIGEST"`; its history stays.

    Snapshots that no ref reaches any more are kept for 7 days.
    """
    _moved(ctx, name, ref, None, (if_match, None), message)


@router.get("/{ref}/policy")
@scope("read")
def get_policy(ctx: Context, name: DatasetName, ref: RefName) -> Policy:
    """The conditions for moving the ref; tokens that only read see names of files, not paths."""
    policy = ctx.service.refs.policy(name, ref)
    for apart in policy.apart_from:
        if apart.clusters is not None and not ctx.principal.sees_places:
            apart.clusters = apart.clusters.rpartition("/")[2]
    return policy


@router.put("/{ref}/policy")
@scope("admin")
def put_policy(ctx: Context, name: DatasetName, ref: RefName, new: Policy) -> Policy:
    """Replace what must hold when the ref moves; the ref need not exist yet."""
    for apart in new.apart_from:
        ctx.principal.require_dataset(apart.dataset)
        if apart.clusters is not None:
            apart.clusters = require_root(
                ctx.service.settings, ctx.principal, apart.clusters, "EVOFEED_INPUT_ROOTS"
            )
    ctx.service.refs.set_policy(name, ref, new, ctx.principal.id)
    return new


@router.get("/{ref}/history")
@scope("read")
def get_history(
    ctx: Context, name: DatasetName, ref: RefName, before: BeforeRow = None, limit: Limit = 100
) -> History:
    """Where the ref has been, newest first."""
    gone: DatasetMissing | None = None
    try:
        ctx.service.refs.note(name, ref)
    except DatasetMissing as error:  # deleted, if there is a history
        gone = error
    moves = ctx.service.refs.history(name, ref, limit + 1, before)
    if gone is not None and not moves and before is None:
        raise gone
    return History(
        moves=[view_of(Move, move, job=move.job_id) for move in moves[:limit]],
        next=moves[limit - 1].id if len(moves) > limit else None,
    )


def _moved(
    ctx: Context,
    name: str,
    ref: str,
    digest: str | None,
    expect: tuple[str | None, str | None],
    message: str,
) -> Ref:
    """Move a ref; 412 with its current digest if it has moved meanwhile."""
    refs = ctx.service.refs
    try:
        expected = _expected(refs, name, ref, *expect)
        return refs.move(name, ref, digest, expected, ctx.principal, message=message)
    except RefConflict as error:
        now, detail = refs.digest(name, ref), error.message.partition(":")[0]
        hint = "read the ref again and retry with its ETag in If-Match"
        tag = {"ETag": f'"{now}"'} if now else {}
        raise Problem(412, "ref_moved", detail, next=hint, headers=tag) from None


def _expected(
    refs: Refs, dataset: str, ref: str, if_match: str | None, if_none_match: str | None
) -> str | None:
    """The digest a ref is asked to be at; None: it must not exist."""
    if if_match is None and if_none_match == "*":
        return None
    if if_match is None or if_none_match is not None:
        hint = 'send `If-Match: "DIGEST"`, or `If-None-Match: *` for a new ref'
        message = "say where the ref points now"
        raise Problem(428, "precondition_required", message, next=hint)
    # A list of tags, any of which will do. Weak ones never match (RFC 9110, 13.1.1).
    tags = [tag.strip() for tag in if_match.split(",")]
    digests = [tag.strip('"') for tag in tags if not tag.startswith("W/")]
    if len(digests) > 1 or "*" in digests:
        current = refs.digest(dataset, ref)
        return current if current and (current in digests or "*" in digests) else _NO_DIGEST
    is_digest = digests and re.fullmatch(
        "[0-9a-f]{64}", digests[0]
    )  # no other text is in a database
    return digests[0] if is_digest else _NO_DIGEST

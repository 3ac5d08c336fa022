"""Refs: read, move by If-Match, list, history."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from evofeed.service.clock import iso
from evofeed.service.names import DatasetName, DigestValue, NewName, RefName
from evofeed.service.places import Uri, require_root
from evofeed.service.problems import Problem
from evofeed.service.ranges import matches
from evofeed.service.refs import move_ref, note_ref, ref_history, require_apart
from evofeed.service.routing import Limit, PrincipalDep, ServiceDep, make_router, scope

router = make_router("/v1/datasets/{name}/refs", "refs")


class RefView(BaseModel):
    """Where a ref points."""

    name: str
    digest: str
    updated_at: str


class RefList(BaseModel):
    """All refs of a dataset, by name."""

    refs: list[RefView]


class Apart(BaseModel):
    """A dataset that must share no sequence with what a ref points at."""

    model_config = ConfigDict(extra="forbid")

    dataset: NewName
    ref: NewName = "main"
    clusters: Uri | None = Field(
        None, description="file with a sequence cluster per line; null: only the same chain counts"
    )


class RefTarget(BaseModel):
    """Where a ref shall point."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "digest": "0" * 64,
                    "forbid": [{"column": "release_date", "op": ">=", "value": "2021-10-01"}],
                }
            ]
        },
    )

    digest: DigestValue
    forbid: list[dict[str, Any]] = Field(
        [], max_length=16, description="filters that no chain of the snapshot may pass"
    )
    apart_from: list[Apart] = Field(
        [], max_length=4, description="test sets that the snapshot must share no sequence with"
    )


class Move(BaseModel):
    """One move of a ref."""

    digest: str
    previous: str | None
    moved_at: str
    principal: str = Field(description="who moved it; `store`: moved outside the service")


class History(BaseModel):
    """Moves of a ref, newest first."""

    moves: list[Move]


@router.get("")
@scope("read")
def list_refs(service: ServiceDep, name: DatasetName) -> RefList:
    """All refs."""
    refs = service.catalog.view(name).refs()
    return RefList(
        refs=[RefView(name=r.name, digest=r.digest, updated_at=r.updated_at) for r in refs]
    )


@router.get("/{ref}")
@scope("read")
def get_ref(
    request: Request, service: ServiceDep, name: DatasetName, ref: RefName, response: Response
) -> RefView:
    """Where a ref points now; send its ETag back in If-None-Match to poll cheaply."""
    found = service.catalog.view(name).ref(ref)
    note_ref(service.database, service.catalog.dataset(name).id, found)
    headers = {"ETag": f'"{found.digest}"', "Cache-Control": "no-cache"}
    if (known := request.headers.get("if-none-match")) and matches(known, headers["ETag"]):
        return Response(status_code=304, headers=headers)  # type: ignore[return-value]
    response.headers.update(headers)
    return RefView(name=ref, digest=found.digest, updated_at=found.updated_at)


@router.put("/{ref}")
@scope("publish")
def put_ref(
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    ref: RefName,
    target: RefTarget,
    response: Response,
    if_match: Annotated[
        str | None, Header(max_length=200, description="the digest it stands at, in quotes")
    ] = None,
    if_none_match: Annotated[
        str | None, Header(max_length=200, description="`*`: it does not exist yet")
    ] = None,
) -> RefView:
    """Point a ref at a snapshot, if nobody else moved it meanwhile.

    `If-Match: "DIGEST"` moves a ref that stands there; `If-None-Match: *` makes a
    new one. One of the two is required.
    """
    for apart in target.apart_from:
        principal.require_dataset(apart.dataset)
        if apart.clusters is not None:
            roots = service.settings.input_roots
            require_root(service.settings, roots, apart.clusters, "EVOFEED_INPUT_ROOTS")
        require_apart(
            service.catalog,
            (name, target.digest),
            (apart.dataset, service.catalog.view(apart.dataset).ref(apart.ref).digest),
            apart.clusters,
        )
    moved = move_ref(
        service.catalog,
        service.database,
        dataset=name,
        ref=ref,
        digest=target.digest,
        expect=_expected(if_match, if_none_match),
        principal=principal.id,
        forbid=target.forbid,
    )
    response.headers["ETag"] = f'"{moved.digest}"'
    return RefView(name=ref, digest=moved.digest, updated_at=moved.updated_at)


@router.get("/{ref}/history")
@scope("read")
def get_history(
    service: ServiceDep,
    name: DatasetName,
    ref: RefName,
    limit: Limit = 100,
) -> History:
    """Where the ref has been, newest first."""
    row = service.catalog.dataset(name)
    note_ref(service.database, row.id, service.catalog.view(name).ref(ref))
    return History(
        moves=[
            Move(
                digest=move.digest,
                previous=move.previous,
                moved_at=iso(move.moved_at),
                principal=move.principal,
            )
            for move in ref_history(service.database, row.id, ref, limit)
        ]
    )


def _expected(if_match: str | None, if_none_match: str | None) -> str | None:
    if if_match is None and if_none_match == "*":
        return None
    if if_match is None or if_none_match is not None:
        raise Problem(
            428,
            "precondition_required",
            "say where the ref stands now",
            next='send `If-Match: "DIGEST"`, or `If-None-Match: *` for a new ref',
        )
    return if_match.strip().strip('"')

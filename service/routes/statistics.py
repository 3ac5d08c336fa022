"""Statistics of a snapshot and the difference of two: exact, not sampled."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from evofeed.service.names import DIGEST_PATTERN, NAME_PATTERN, DatasetName, Digest
from evofeed.service.requests.ranges import NOT_MODIFIED, immutable_json
from evofeed.service.requests.routing import Limit, ServiceDep, make_router, scope
from evofeed.service.state import Service

router = make_router("/v1/datasets/{name}", "statistics")
Either = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class Statistics(BaseModel):
    """What the columns of a snapshot's index hold."""

    snapshot: str
    num_chains: int
    columns: dict[str, dict[str, Any]]


class DiffEntry(BaseModel):
    """A chain that differs."""

    chain_id: str
    change: Literal["added", "removed", "changed"]


class Diff(BaseModel):
    """What changed from one snapshot to another."""

    before: str
    after: str
    added: int
    removed: int
    changed: int
    entries: list[DiffEntry]
    next: str | None = Field(description="cursor of the next page; null at the end")


@router.get("/snapshots/{digest}/stats", response_model=Statistics, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def get_statistics(
    request: Request, service: ServiceDep, name: DatasetName, digest: Digest
) -> Response:
    """Counts, extremes, quantiles and histograms over every chain."""
    snapshot = service.catalog.snapshot(name, digest)
    statistics = Statistics(
        snapshot=digest,
        num_chains=snapshot.index.num_rows,
        columns=service.catalog.statistics(name, digest),
    )
    return immutable_json(request, statistics.model_dump())


@router.get("/diff")
@scope("read", heavy=True)
def get_diff(
    service: ServiceDep,
    name: DatasetName,
    before: Annotated[Either, Query(description="ref or digest")],
    after: Annotated[Either, Query(description="ref or digest")] = "main",
    limit: Limit = 100,
    cursor: Annotated[
        str | None, Query(max_length=256, description="`next` of the page before")
    ] = None,
) -> Diff:
    """Chains added, removed or changed, by id; a chain changed if its bytes did."""
    start = 0
    old, new = digest_of(service, name, before), digest_of(service, name, after)
    if cursor:
        # Pinned by the digests, not the refs: a page stays what its first page was.
        start, new = service.signer.read(cursor, f"diff {name} {old}")
    found = service.catalog.difference(name, old, new)
    entries = [(change, chain) for change, ids in found.to_dict().items() for chain in ids]
    more = start + limit < len(entries)
    return Diff(
        before=old,
        after=new,
        added=len(found.added),
        removed=len(found.removed),
        changed=len(found.changed),
        entries=[
            DiffEntry(chain_id=chain_id, change=change)  # type: ignore[arg-type]
            for change, chain_id in entries[start : start + limit]
        ],
        next=service.signer.write(start + limit, new, f"diff {name} {old}") if more else None,
    )


def digest_of(service: Service, name: str, either: str) -> str:
    """The digest that a ref or a digest names.

    Raises:
        DatasetMissing: there is no such ref.
    """
    is_digest = re.fullmatch(DIGEST_PATTERN, either)
    return either if is_digest else service.catalog.view(name).ref(either).digest

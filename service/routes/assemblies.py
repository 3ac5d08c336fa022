"""Complexes of a snapshot: pages with typed filters, and the tables a loader reads them from."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from evofeed.service.filters.columns import Columns
from evofeed.service.names import DatasetName, Digest
from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import (
    ARROW,
    NOT_MODIFIED,
    described,
    immutable_json,
    immutable_response,
)
from evofeed.service.requests.routing import ServiceDep, make_router, scope
from evofeed.service.routes.chains import IsoDate, RowQuery, page_of
from evofeed.service.snapshots import chains

router = make_router("/v1/datasets/{name}/snapshots/{digest}", "chains")

_LISTS = ("chain_ids", "copies", "author_chains", "dropped")


class AssemblyQuery(RowQuery):
    """A page of complexes; all that are given must hold."""

    TERMS: ClassVar = (
        ("stoichiometry", "in", "stoichiometry"),
        ("num_chains", ">=", "min_chains"),
        ("num_chains", "<=", "max_chains"),
        ("num_entities", ">=", "min_entities"),
        ("num_entities", "<=", "max_entities"),
        ("num_interface", ">=", "min_interface"),
        ("num_res", "<=", "max_length"),
        ("resolution", "<=", "max_resolution"),
        ("release_date", ">=", "released_from"),
        ("release_date", "<", "released_before"),
    )

    stoichiometry: list[str] | None = Field(
        None, max_length=64, description="any of these, such as A2B2"
    )
    min_chains: int | None = Field(None, ge=0, le=2**31, description="chains, copies included")
    max_chains: int | None = Field(None, ge=0, le=2**31, description="chains, copies included")
    min_entities: int | None = Field(None, ge=0, le=2**31, description="distinct sequences")
    max_entities: int | None = Field(None, ge=0, le=2**31, description="distinct sequences")
    min_interface: int | None = Field(
        None, ge=0, le=2**31, description="residues within 10 ångström of another chain"
    )
    max_length: int | None = Field(None, ge=0, le=2**31, description="residues of all chains")
    max_resolution: float | None = Field(
        None, gt=0, le=1e6, description="ångström; known ones only"
    )
    released_from: IsoDate | None = Field(None, description="this day or later")
    released_before: IsoDate | None = Field(None, description="earlier than this day")
    where: str | None = Field(None, max_length=8000, description="filter as JSON")
    limit: int = Field(100, ge=1, le=chains.MAX_PAGE, description="rows of a page, at most")
    cursor: str | None = Field(None, max_length=256, description="`next` of the page before")
    count: bool = Field(False, description="also count all that match")


class AssemblyPage(BaseModel):
    """Complexes by name."""

    snapshot: str = Field(description="digest the page was read from")
    assemblies: list[dict[str, Any]]
    next: str | None = Field(description="cursor of the next page; null at the end")
    matched: int | None = Field(description="all that match, if counted")


@router.get("/assemblies", response_model=AssemblyPage, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def list_assemblies(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    query: Annotated[AssemblyQuery, Query()],
) -> Response:
    """Complexes of a snapshot that pass every filter given; none in a snapshot of chains."""
    table = service.catalog.assemblies(name, digest)
    ready = Columns(table)
    columns = [*ready.kinds, *(column for column in _LISTS if column in table.column_names)]
    found = page_of(service, ("assemblies", name), digest, query.search(), table, ready, columns)
    return immutable_json(request, found)


@router.get("/{table}.arrow", response_class=Response, responses=described(ARROW))
@scope("read", counted=False)
def get_assembly_file(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    table: Annotated[
        Literal["assemblies", "members"],
        Path(description="one row a complex, or the index of what belongs to complexes alone"),
    ],
) -> Response:
    """What a loader reads complexes from: coordinates of copies and rows to pair are members."""
    file = f"{table}.arrow"
    snapshot = service.catalog.snapshot(name, digest)
    known = (snapshot.manifest.assemblies or {"files": {}})["files"].get(file)
    if known is None:
        raise Problem(
            404,
            "not_found",
            "this snapshot has no complexes",
            next="add some with `evofeed assemblies`",
        )
    return immutable_response(
        request,
        etag=f'"{known["sha256"]}"',
        size=known["nbytes"],
        read=service.catalog.view(name).reader(f"snapshots/{digest}/{file}"),
        media_type=ARROW,
    )

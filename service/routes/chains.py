"""Chains of a snapshot: pages with typed filters, and one by its id."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Any, ClassVar, Final

import orjson
import pyarrow as pa
from fastapi import Path, Query, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from starlette.responses import Response

from evofeed.service.filters.columns import Columns
from evofeed.service.names import DatasetName, Digest, NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.body import Body
from evofeed.service.requests.ranges import NOT_MODIFIED, immutable_json, json_response
from evofeed.service.requests.routing import ServiceDep, make_router, scope
from evofeed.service.snapshots import chains
from evofeed.service.state import Service

router = make_router("/v1/datasets/{name}", "chains")
_ENCODE: Final = json.JSONEncoder(sort_keys=True).encode


def _iso_date(text: str) -> str:
    return datetime.date.fromisoformat(text).isoformat()


IsoDate = Annotated[
    str,
    StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"),
    AfterValidator(_iso_date),
    WithJsonSchema({"type": "string", "format": "date"}),
]


class ChainSearch(
    Body,
    json_schema_extra={
        "examples": [{"where": {"column": "num_res", "op": "<=", "value": 384}, "limit": 10}]
    },
):
    """A page of chains, as JSON."""

    where: dict[str, Any] | None = Field(None, description="filter, see /v1/config")
    columns: list[str] | None = Field(None, max_length=64, description="null for all")
    limit: int = Field(100, ge=1, le=chains.MAX_PAGE, description="rows of a page, at most")
    cursor: str | None = Field(None, max_length=256, description="`next` of the page before")
    count: bool = Field(False, description="also count all that match")


class RowQuery(BaseModel, extra="forbid"):
    """A page of rows, as query parameters; all that are given must hold."""

    TERMS: ClassVar[tuple[tuple[str, str, str], ...]]
    """Column, comparison, and the parameter that it is with."""

    def search(self) -> ChainSearch:
        """The same question as JSON."""
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        terms = [
            {"column": column, "op": op, "value": given[name]}
            for column, op, name in self.TERMS
            if name in given
        ]
        if "where" in given:
            terms.append(parse_filter(given["where"]))
        return ChainSearch(
            where={"all": terms} if terms else None,
            columns=given["columns"].split(",") if given.get("columns") else None,
            limit=given["limit"],
            cursor=given.get("cursor"),
            count=given["count"],
        )


class ChainQuery(RowQuery):
    """A page of chains, as query parameters; all that are given must hold."""

    TERMS: ClassVar = (
        ("num_res", ">=", "min_length"),
        ("num_res", "<=", "max_length"),
        ("num_alignments", ">=", "min_depth"),
        ("num_alignments", "<=", "max_depth"),
        ("num_templates", ">=", "min_templates"),
        ("resolution", "<=", "max_resolution"),
        ("release_date", ">=", "released_from"),
        ("release_date", "<", "released_before"),
        ("method", "in", "method"),
        ("is_distillation", "==", "is_distillation"),
        ("has_structure", "==", "has_structure"),
    )

    min_length: int | None = Field(None, ge=0, le=2**31, description="residues")
    max_length: int | None = Field(None, ge=0, le=2**31, description="residues")
    min_depth: int | None = Field(None, ge=0, le=2**31, description="MSA rows")
    max_depth: int | None = Field(None, ge=0, le=2**31, description="MSA rows")
    min_templates: int | None = Field(None, ge=0, le=2**31, description="templates kept")
    max_resolution: float | None = Field(
        None, gt=0, le=1e6, description="ångström; known ones only"
    )
    released_from: IsoDate | None = Field(None, description="this day or later")
    released_before: IsoDate | None = Field(None, description="earlier than this day")
    method: list[str] | None = Field(
        None, max_length=32, description="any of these, in upper or lower case"
    )
    is_distillation: bool | None = Field(None, description="its structure is a prediction")
    has_structure: bool | None = Field(None, description="it has coordinates")
    where: str | None = Field(
        None, max_length=8000, description="filter as JSON; longer ones: POST .../chains/search"
    )
    columns: str | None = Field(None, max_length=2000, description="comma-separated")
    limit: int = Field(100, ge=1, le=chains.MAX_PAGE, description="rows of a page, at most")
    cursor: str | None = Field(None, max_length=256, description="`next` of the page before")
    count: bool = Field(False, description="also count all that match")


class ChainPage(BaseModel):
    """Chains in index order."""

    snapshot: str = Field(description="digest the page was read from")
    chains: list[dict[str, Any]]
    next: str | None = Field(description="cursor of the next page; null at the end")
    matched: int | None = Field(description="all that match, if counted")


@router.get("/snapshots/{digest}/chains", response_model=ChainPage, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def list_chains(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    query: Annotated[ChainQuery, Query()],
) -> Response:
    """Chains of a snapshot that pass every filter given."""
    return immutable_json(request, _page(service, name, digest, query.search()))


@router.post("/snapshots/{digest}/chains/search", response_model=ChainPage)
@scope("read", repeatable=False, heavy=True)
def search_chains(
    request: Request, service: ServiceDep, name: DatasetName, digest: Digest, search: ChainSearch
) -> Response:
    """The same with the filter as a JSON body, for long ones."""
    return _answer(request, _page(service, name, digest, search))


class RefChainQuery(ChainQuery):
    """As ChainQuery, on the snapshot a ref points at."""

    ref: NewName = Field("main", description="whose snapshot, without a cursor")


@router.get("/chains", response_model=ChainPage)
@scope("read", heavy=True)
def list_ref_chains(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    query: Annotated[RefChainQuery, Query()],
) -> Response:
    """Chains of the snapshot a ref points at; later pages stay on that snapshot."""
    return _answer(request, _page_of_ref(service, name, query))


@router.get(
    "/snapshots/{digest}/chains/{chain_id}",
    response_model=dict[str, Any],
    responses=NOT_MODIFIED,
)
@scope("read")
def get_chain(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    chain_id: Annotated[str, Path(description="chain id; case matters")],
) -> Response:
    """One chain's row of the index."""
    snapshot = service.catalog.snapshot(name, digest)
    row = chains.row_of(snapshot, chain_id)
    return immutable_json(request, chains.row_as_json(snapshot.columns, row))


def _page_of_ref(service: Service, name: str, query: RefChainQuery) -> bytes:
    search = query.search()
    if search.cursor:
        _, digest = service.signer.read(search.cursor, _query(name, search))
    else:
        digest = service.catalog.view(name).ref(query.ref).digest
    return _page(service, name, digest, search)


def _page(service: Service, name: str, digest: str, search: ChainSearch) -> bytes:
    snapshot = service.catalog.snapshot(name, digest)
    columns = chains.columns_of(snapshot.index, search.columns, snapshot.columns.kinds)
    about = ("chains", name)
    return page_of(service, about, digest, search, snapshot.index, snapshot.columns, columns)


def page_of(
    service: Service,
    about: tuple[str, str],
    digest: str,
    search: ChainSearch,
    table: pa.Table,
    ready: Columns,
    columns: list[str],
) -> bytes:
    """A page as JSON.

    Args:
        service: signs the cursors.
        about: what the rows are, which is their name in the answer, and the dataset's name.
        digest: of the snapshot.
        search: which rows.
        table: the snapshot's.
        ready: its columns, made ready for filters.
        columns: of each row.
    """
    what, name = about
    query = _query(name, search) if what == "chains" else _query(f"{what} {name}", search)
    start = 0
    if search.cursor:
        start, pinned = service.signer.read(search.cursor, query)
        if pinned != digest:
            raise Problem(
                422,
                "bad_cursor",
                "the cursor belongs to another snapshot",
                next="begin again without a cursor",
            )
    found = chains.page(
        table, search.where, columns, start, search.limit, ready=ready, counted=search.count
    )
    if search.where is not None:  # who filters goes on filtering
        ready.prepare()
    more = found.next_row
    rest = {
        "snapshot": digest,
        "next": None if more is None else service.signer.write(more, digest, query),
        "matched": found.matched,
    }
    return orjson.dumps({what: orjson.Fragment(found.json), **rest})


def _answer(request: Request, page: bytes) -> Response:
    return json_response(request, page, {"Cache-Control": "private"})


def _query(name: str, search: ChainSearch) -> str:
    """All that a listing depends on beside the snapshot; the page size may change midway."""
    return _ENCODE([name, search.where, search.columns])


def parse_filter(text: str) -> Any:
    """A filter that came as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Problem(
            422,
            "bad_filter",
            "`where` is not JSON",
            next='write a filter such as {"column": "num_res", "op": "<=", "value": 384}',
        ) from None

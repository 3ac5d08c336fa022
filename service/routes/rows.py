"""Chains and complexes of a snapshot: pages with typed filters, statistics, and files of them."""

from __future__ import annotations

import datetime
import json
import re
from typing import Annotated, Any, ClassVar, Final, Literal

import pyarrow as pa
from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, Field, StringConstraints, WithJsonSchema
from starlette.responses import JSONResponse, Response, StreamingResponse

from evofeed.service.cursor import bad_cursor
from evofeed.service.names import DIGEST_PATTERN, NAME_PATTERN, DatasetName, Digest, NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.body import Body
from evofeed.service.requests.ranges import (
    ARROW,
    NOT_MODIFIED,
    described,
    immutable_json,
    immutable_response,
)
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.snapshots import export, rows
from evofeed.service.state import Service

router = make_router("/v1/datasets/{name}", "chains")
Either = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Path(description="ref or digest")]
Kind = Literal["csv", "parquet", "arrow", "fasta"]
_LISTS: Final = ("chain_ids", "copies", "author_chains", "dropped")
_ENCODE: Final = json.JSONEncoder(sort_keys=True).encode


def _iso_date(text: str) -> str:
    return datetime.date.fromisoformat(text).isoformat()


IsoDate = Annotated[
    str,
    StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"),
    AfterValidator(_iso_date),
    WithJsonSchema({"type": "string", "format": "date"}),
]
Count = Annotated[int | None, Field(ge=0, le=2**31)]
Cursor = Annotated[str | None, Field(max_length=256, description="`next` of the page before")]


class ChainSearch(
    Body,
    json_schema_extra={
        "examples": [{"where": {"column": "num_res", "op": "<=", "value": 384}, "limit": 10}]
    },
):
    """A page of chains, as JSON."""

    where: dict[str, Any] | None = Field(None, description="filter, see /v1/config")
    columns: list[str] | None = Field(None, max_length=64, description="null for all")
    limit: int = Field(100, ge=1, le=rows.MAX_PAGE, description="rows of a page, at most")
    cursor: Cursor = None
    count: bool = Field(False, description="also count all that match")


class RowQuery(BaseModel, extra="forbid"):
    """A page of rows, as query parameters; all that are given must hold."""

    TERMS: ClassVar[tuple[tuple[str, str, str], ...]]
    """Column, comparison, and the parameter that it is with."""

    max_resolution: float | None = Field(
        None, gt=0, le=1e6, description="ångström; known ones only"
    )
    released_from: IsoDate | None = Field(None, description="this day or later")
    released_before: IsoDate | None = Field(None, description="earlier than this day")
    where: str | None = Field(
        None, max_length=8000, description="filter as JSON; longer ones: POST .../chains/search"
    )
    columns: str | None = Field(None, max_length=2000, description="comma-separated")
    limit: int = Field(100, ge=1, le=rows.MAX_PAGE, description="rows of a page, at most")
    cursor: Cursor = None
    count: bool = Field(False, description="also count all that match")

    def search(self) -> ChainSearch:
        """The same question as JSON."""
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        common = (("resolution", "<=", "max_resolution"), ("release_date", ">=", "released_from"),
                  ("release_date", "<", "released_before"))  # fmt: skip
        terms = [
            {"column": column, "op": op, "value": given[name]}
            for column, op, name in (*self.TERMS, *common)
            if name in given
        ]
        if "where" in given:
            terms.append(_parse_filter(given["where"]))
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
        ("method", "in", "method"),
        ("is_distillation", "==", "is_distillation"),
        ("has_structure", "==", "has_structure"),
    )

    min_length: Count = Field(None, description="residues")
    max_length: Count = Field(None, description="residues")
    min_depth: Count = Field(None, description="MSA rows")
    max_depth: Count = Field(None, description="MSA rows")
    min_templates: Count = Field(None, description="templates kept")
    method: list[str] | None = Field(
        None, max_length=32, description="any of these, in upper or lower case"
    )
    is_distillation: bool | None = Field(None, description="its structure is a prediction")
    has_structure: bool | None = Field(None, description="it has coordinates")


class RefChainQuery(ChainQuery):
    """As ChainQuery, on the snapshot a ref points at."""

    ref: NewName = Field("main", description="whose snapshot, without a cursor")


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
    )

    stoichiometry: list[str] | None = Field(
        None, max_length=64, description="any of these, such as A2B2"
    )
    min_chains: Count = Field(None, description="chains, copies included")
    max_chains: Count = Field(None, description="chains, copies included")
    min_entities: Count = Field(None, description="distinct sequences")
    max_entities: Count = Field(None, description="distinct sequences")
    min_interface: Count = Field(None, description="residues within 10 ångström of another chain")
    max_length: Count = Field(None, description="residues of all chains")


class ChainPage(BaseModel):
    """Chains in index order."""

    snapshot: str = Field(description="digest the page was read from")
    chains: list[dict[str, Any]]
    next: str | None = Field(description="cursor of the next page; null at the end")
    matched: int | None = Field(description="all that match, if counted")


class AssemblyPage(BaseModel):
    """Complexes by name."""

    snapshot: str = Field(description="digest the page was read from")
    assemblies: list[dict[str, Any]]
    next: str | None = Field(description="cursor of the next page; null at the end")
    matched: int | None = Field(description="all that match, if counted")


class Statistics(BaseModel):
    """What the columns of a snapshot's index hold."""

    snapshot: str
    num_chains: int
    columns: dict[str, dict[str, Any]]


@router.get("/snapshots/{digest}/chains", response_model=ChainPage, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def list_chains(
    ctx: Context, name: DatasetName, digest: Digest, query: Annotated[ChainQuery, Query()]
) -> Response:
    """Chains of a snapshot that pass every filter given."""
    return immutable_json(ctx.request, _page(ctx.service, name, digest, query.search()))


@router.post("/snapshots/{digest}/chains/search", response_model=ChainPage)
@scope("read", heavy=True)
def search_chains(ctx: Context, name: DatasetName, digest: Digest, search: ChainSearch) -> Response:
    """The same with the filter as a JSON body, for long ones."""
    return _answer(_page(ctx.service, name, digest, search))


@router.get("/chains", response_model=ChainPage)
@scope("read", heavy=True)
def list_ref_chains(
    ctx: Context, name: DatasetName, query: Annotated[RefChainQuery, Query()]
) -> Response:
    """Chains of the snapshot a ref points at; later pages stay on that snapshot."""
    search = query.search()
    if search.cursor:
        _, digest = ctx.service.signer.read(search.cursor, _query("chains", name, search))
    else:
        digest = ctx.service.catalog.view(name).ref(query.ref).digest
    return _answer(_page(ctx.service, name, digest, search))


@router.get(
    "/snapshots/{digest}/chains.{kind}",
    response_class=Response,
    responses={200: {"content": {media: {} for media in export.MEDIA.values()}}},
)
@scope("read", heavy=True)
def export_chains(
    ctx: Context,
    name: DatasetName,
    digest: Digest,
    kind: Annotated[Kind, Path(description="what of file")],
    query: Annotated[ChainQuery, Query()],
) -> Response:
    """All chains that pass every filter, as one file; streamed, so that it may be long."""
    search = query.search()
    index = ctx.service.catalog.snapshot(name, digest).index
    found = rows.matching(index, search.where)
    return exported(ctx.service, name, digest, kind, index, found, search.columns)


@router.get(
    "/snapshots/{digest}/chains/{chain_id}", response_model=dict[str, Any], responses=NOT_MODIFIED
)
@scope("read")
def get_chain(
    ctx: Context,
    name: DatasetName,
    digest: Digest,
    chain_id: Annotated[str, Path(description="chain id; case matters")],
) -> Response:
    """One chain's row of the index."""
    snapshot = ctx.service.catalog.snapshot(name, digest)
    found = rows.row_at(snapshot.described, rows.row_of(snapshot, chain_id))
    return immutable_json(ctx.request, found)


@router.get("/snapshots/{digest}/assemblies", response_model=AssemblyPage, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def list_assemblies(
    ctx: Context, name: DatasetName, digest: Digest, query: Annotated[AssemblyQuery, Query()]
) -> Response:
    """Complexes of a snapshot that pass every filter given; none in a snapshot of chains."""
    table, search = ctx.service.catalog.assemblies(name, digest), query.search()
    columns = rows.columns_of(table, search.columns)
    if search.columns is None:
        columns += [column for column in _LISTS if column in table.column_names]
    found = _page_of(ctx.service, ("assemblies", name, digest), search, table, columns)
    return immutable_json(ctx.request, found)


@router.get(
    "/snapshots/{digest}/{table}.arrow", response_class=Response, responses=described(ARROW)
)
@scope("read", reads_bytes=True)
def get_assembly_file(
    ctx: Context,
    name: DatasetName,
    digest: Digest,
    table: Annotated[
        Literal["assemblies", "members"],
        Path(description="one row a complex, or the index of what belongs to complexes alone"),
    ],
) -> Response:
    """What a loader reads complexes from: coordinates of copies and rows to pair are members."""
    file = f"{table}.arrow"
    snapshot = ctx.service.catalog.snapshot(name, digest)
    known = (snapshot.manifest.assemblies or {"files": {}})["files"].get(file)
    if known is None:
        what, hint = "this snapshot has no complexes", "add some with `evofeed assemblies`"
        raise Problem(404, "not_found", what, next=hint)
    return immutable_response(
        ctx.request,
        etag=f'"{known["sha256"]}"',
        size=known["nbytes"],
        read=ctx.service.catalog.view(name).reader(f"snapshots/{digest}/{file}"),
        media_type=ARROW,
    )


@router.get("/snapshots/{digest}/stats", response_model=Statistics, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def get_statistics(ctx: Context, name: DatasetName, digest: Digest) -> Response:
    """Counts, extremes, quantiles and histograms over every chain."""
    snapshot = ctx.service.catalog.snapshot(name, digest)
    columns = ctx.service.catalog.statistics(name, digest)
    found = {"snapshot": digest, "num_chains": snapshot.index.num_rows, "columns": columns}
    return immutable_json(ctx.request, found)


def digest_of(service: Service, name: str, either: str) -> str:
    """The digest that a ref or a digest names.

    Raises:
        DatasetMissing: there is no such ref.
    """
    is_digest = re.fullmatch(DIGEST_PATTERN, either)
    return either if is_digest else service.catalog.view(name).ref(either).digest


def exported(
    service: Service,
    name: str,
    digest: str,
    kind: Kind,
    index: pa.Table,
    found: Any,
    columns: list[str] | None = None,
) -> Response:
    """Rows of an index as a file of a kind.

    Raises:
        Problem: 413, too many for a FASTA file.
    """
    if kind == "fasta":
        if len(found) > export.FASTA_MOST:
            what = f"{len(found):,} chains; a FASTA file may have {export.FASTA_MOST:,}"
            raise Problem(413, "too_many_chains", what, next="narrow the filters")
        ids = index["chain_id"].take(pa.array(found)).to_pylist()
        body = export.fasta(lambda chain: service.catalog.record(name, digest, chain), ids)
    else:
        body = export.table(kind, index.select(rows.columns_of(index, columns)), found)
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{name}-{digest[:12]}.{kind}"',
    }
    return StreamingResponse(body, headers=headers, media_type=export.MEDIA[kind])


def _page(service: Service, name: str, digest: str, search: ChainSearch) -> dict[str, Any]:
    index = service.catalog.snapshot(name, digest).index
    columns = rows.columns_of(index, search.columns)
    return _page_of(service, ("chains", name, digest), search, index, columns)


def _page_of(
    service: Service,
    about: tuple[str, str, str],
    search: ChainSearch,
    table: pa.Table,
    columns: list[str],
) -> dict[str, Any]:
    """A page of rows; `about` is what they are, the dataset's name and the snapshot's digest."""
    what, name, digest = about
    query, start = _query(what, name, search), 0
    if search.cursor:
        start, pinned = service.signer.read(search.cursor, query)
        if pinned != digest:
            raise bad_cursor("the cursor belongs to another snapshot")
    found = rows.page(table, search.where, columns, start, search.limit, counted=search.count)
    more = found.next_row
    return {
        "snapshot": digest,
        what: found.rows,
        "next": None if more is None else service.signer.write(more, digest, query),
        "matched": found.matched,
    }


def _answer(page: dict[str, Any]) -> Response:
    return JSONResponse(page, headers={"Cache-Control": "private"})


def _query(what: str, name: str, search: ChainSearch) -> str:
    """All that a listing depends on beside the snapshot; the page size may change midway."""
    return _ENCODE([what, name, search.where, search.columns])


def _parse_filter(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        hint = 'write a filter such as {"column": "num_res", "op": "<=", "value": 384}'
        raise Problem(422, "bad_filter", "`where` is not JSON", next=hint) from None

"""Chains and complexes of a snapshot: filtered pages, statistics, and which rank reads what."""

from __future__ import annotations

import datetime
import json
import re
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, Field, StringConstraints, WithJsonSchema
from starlette.responses import JSONResponse, Response

from evofeed import loader  # its names load when they are used: no start waits for them
from evofeed.base.errors import LoaderError
from evofeed.base.files import parse_json
from evofeed.service.names import DIGEST_PATTERN, NAME_PATTERN, Body, DatasetName, Digest, NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import NOT_MODIFIED, immutable_json
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.snapshots import rows
from evofeed.service.state import Service, bad_cursor

router = make_router("/v1/datasets/{name}", "chains")
Either = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Path(description="ref or digest")]
Table = Annotated[Literal["chains", "assemblies"], Path(description="assemblies are complexes")]
_LISTS: Final = ("chain_ids", "copies", "author_chains", "dropped")  # of complexes
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
    """A page of chains or complexes, as query parameters; all that are given must hold."""

    min_length: Count = Field(None, description="residues, of a complex those of all chains")
    max_length: Count = Field(None, description="residues, of a complex those of all chains")
    min_depth: Count = Field(None, description="MSA rows of a chain")
    max_depth: Count = Field(None, description="MSA rows of a chain")
    min_templates: Count = Field(None, description="templates kept of a chain")
    method: list[str] | None = Field(
        None, max_length=32, description="any of these, in upper or lower case"
    )
    is_distillation: bool | None = Field(None, description="a chain's structure is a prediction")
    has_structure: bool | None = Field(None, description="it has coordinates")
    stoichiometry: list[str] | None = Field(
        None, max_length=64, description="of a complex, any of these, such as A2B2"
    )
    min_chains: Count = Field(None, description="chains of a complex, copies included")
    max_chains: Count = Field(None, description="chains of a complex, copies included")
    min_entities: Count = Field(None, description="distinct sequences of a complex")
    max_entities: Count = Field(None, description="distinct sequences of a complex")
    min_interface: Count = Field(
        None, description="residues of a complex within 10 ångström of another chain"
    )
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
        filters: dict[str, Any] = self.model_dump(exclude_none=True)
        terms = [
            {"column": column, "op": op, "value": filters[name]}
            for column, op, name in _TERMS
            if name in filters
        ]
        if "where" in filters:
            try:
                terms.append(parse_json(filters["where"]))
            except ValueError:
                hint = 'write a filter such as {"column": "num_res", "op": "<=", "value": 384}'
                raise Problem(422, "bad_filter", "`where` is not JSON", next=hint) from None
        return ChainSearch(
            where={"all": terms} if terms else None,
            columns=filters["columns"].split(",") if filters.get("columns") else None,
            **self.model_dump(include={"limit", "cursor", "count"}),
        )


_TERMS: Final = (
    ("num_res", ">=", "min_length"), ("num_res", "<=", "max_length"),
    ("num_alignments", ">=", "min_depth"), ("num_alignments", "<=", "max_depth"),
    ("num_templates", ">=", "min_templates"), ("method", "in", "method"),
    ("is_distillation", "==", "is_distillation"), ("has_structure", "==", "has_structure"),
    ("stoichiometry", "in", "stoichiometry"),
    ("num_chains", ">=", "min_chains"), ("num_chains", "<=", "max_chains"),
    ("num_entities", ">=", "min_entities"), ("num_entities", "<=", "max_entities"),
    ("num_interface", ">=", "min_interface"), ("resolution", "<=", "max_resolution"),
    ("release_date", ">=", "released_from"), ("release_date", "<", "released_before"),
)  # fmt: skip
"""Column, comparison, and the parameter that it is with."""


class RefRowQuery(RowQuery):
    """As RowQuery, on the snapshot a ref points at."""

    ref: NewName = Field("main", description="whose snapshot, without a cursor")


class RowPage(BaseModel):
    """Chains or complexes by id."""

    snapshot: str = Field(description="digest the page was read from")
    chains: list[dict[str, Any]] = Field([], description="where chains were asked for")
    assemblies: list[dict[str, Any]] = Field([], description="where complexes were asked for")
    next: str | None = Field(description="cursor of the next page; null at the end")
    matched: int | None = Field(description="all that match, if counted")


class Statistics(BaseModel):
    """Statistics of the columns of a snapshot's index."""

    snapshot: str
    num_chains: int
    columns: dict[str, dict[str, Any]]


@router.post("/snapshots/{digest}/chains/search", response_model=RowPage)
@scope("read", heavy=True)
def search_chains(ctx: Context, name: DatasetName, digest: Digest, search: ChainSearch) -> Response:
    """Chains of a snapshot with the filter as a JSON body, for long ones."""
    page = _page(ctx.service, name, digest, "chains", search)
    return JSONResponse(page, headers={"Cache-Control": "private"})


@router.get("/chains", response_model=RowPage)
@scope("read", heavy=True)
def list_ref_chains(
    ctx: Context, name: DatasetName, query: Annotated[RefRowQuery, Query()]
) -> Response:
    """Chains of the snapshot a ref points at; later pages stay on that snapshot."""
    search = query.search()
    if search.cursor:
        _, digest = ctx.service.signer.read(search.cursor, _query("chains", name, search))
    else:
        digest = ctx.service.catalog.view(name).ref(query.ref).digest
    return search_chains(ctx, name, digest, search)


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
    number = rows.row_of(snapshot.index, chain_id)
    values = rows.row_at(ctx.service.catalog.described(snapshot), number)
    return immutable_json(ctx.request, values)


@router.get("/snapshots/{digest}/stats", response_model=Statistics, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def get_statistics(ctx: Context, name: DatasetName, digest: Digest) -> Response:
    """Counts, extremes, quantiles and histograms over every chain."""
    snapshot = ctx.service.catalog.snapshot(name, digest)
    columns = ctx.service.catalog.statistics(name, digest)
    body = {"snapshot": digest, "num_chains": snapshot.index.num_rows, "columns": columns}
    return immutable_json(ctx.request, body)


def digest_of(service: Service, name: str, either: str) -> str:
    """The digest that a ref or a digest names (raises DatasetMissing: there is no such ref)."""
    is_digest = re.fullmatch(DIGEST_PATTERN, either)
    return either if is_digest else service.catalog.view(name).ref(either).digest


def _page(
    service: Service, name: str, digest: str, table: Table, search: ChainSearch
) -> dict[str, Any]:
    every = service.catalog.table(name, digest, table)
    columns = rows.columns_of(every, search.columns)
    if search.columns is None:
        columns += [column for column in _LISTS if column in every.column_names]
    query, start = _query(table, name, search), 0
    if search.cursor:
        start, pinned = service.signer.read(search.cursor, query)
        if pinned != digest:
            raise bad_cursor("the cursor belongs to another snapshot")
    page, more, matched = rows.page(
        every, search.where, columns, start, search.limit, counted=search.count
    )
    return {
        "snapshot": digest,
        table: page,
        "next": None if more is None else service.signer.write(more, digest, query),
        "matched": matched,
    }


def _query(table: Table, name: str, search: ChainSearch) -> str:
    """All that a listing depends on besides the snapshot; the page size may change midway."""
    return _ENCODE([table, name, search.where, search.columns])


MAX_SAMPLES: Final = 10_000  # in one answer


class PlanQuery(BaseModel, extra="forbid"):
    """Whose batches to list: the arguments of a `FeatureLoader`, and how many."""

    world_size: int = Field(ge=1, le=65_536, description="ranks that load together")
    rank: int | None = Field(None, ge=0, description="this rank only")
    seed: int = Field(0, ge=0, lt=2**63, description="of the run")
    epoch: int = Field(0, ge=0, lt=2**63, description="from 0; each has its own order")
    start: int = Field(0, ge=0, lt=2**63, description="batch of the epoch to begin with")
    batches: int = Field(1, ge=1, le=MAX_SAMPLES, description="of each rank")
    preset: str = Field("initial_training", max_length=64, description="of `LoaderConfig`")
    batch_size: int = Field(1, ge=1, le=MAX_SAMPLES, description="samples in a batch of a rank")
    global_batch_size: int | None = Field(
        None, ge=1, lt=2**31, description="samples of an optimiser step; null: one batch a rank"
    )


class PlanView(BaseModel):
    """The output of `evofeed plan --json`, for one snapshot."""

    snapshot: str
    samples: list[dict[str, Any]] = Field(
        description="by epoch, batch, rank and position: step, chain_id, recycling_iters, and the "
        "shard, offset and nbytes of the chain"
    )


@router.get("/snapshots/{digest}/plan", response_model=PlanView, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def get_plan(
    ctx: Context, name: DatasetName, digest: Digest, query: Annotated[PlanQuery, Query()]
) -> Response:
    """The batches that a `FeatureLoader` of these arguments takes: which rank reads what."""
    sizes = query.model_dump(include={"batch_size", "global_batch_size"})
    run_of = query.model_dump(include={"world_size", "seed"})
    part = query.model_dump(include={"rank", "epoch", "start", "batches"})
    snapshot = ctx.service.catalog.snapshot(name, digest)
    try:
        config = loader.LoaderConfig.preset(query.preset, **sizes)
        plan = ctx.service.catalog.run_plan(snapshot, config, **run_of)
        samples = plan.samples(**part, most=MAX_SAMPLES)
    except (ValueError, LoaderError) as error:
        raise Problem(422, "bad_request", str(error), next="see `evofeed plan --help`") from None
    return immutable_json(ctx.request, {"snapshot": digest, "samples": samples})


# The last of these paths: `{table}` would be any of the others.
@router.get("/snapshots/{digest}/{table}", response_model=RowPage, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def list_rows(
    ctx: Context, name: DatasetName, digest: Digest, table: Table,
    query: Annotated[RowQuery, Query()],
) -> Response:  # fmt: skip
    """Chains or complexes of a snapshot that pass every filter given."""
    return immutable_json(ctx.request, _page(ctx.service, name, digest, table, query.search()))

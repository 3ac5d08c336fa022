"""Datasets: register, list, get, forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri, require_root
from evofeed.service.database.tables import DatasetRow
from evofeed.service.names import NAME_PATTERN, Body, DatasetName, Message, NewName, view_of
from evofeed.service.requests.routing import Context, Limit, make_router, scope

router = make_router("/v1/datasets", "datasets")
After = Annotated[
    str, Query(pattern=rf"^$|{NAME_PATTERN}", description="`next` of the page before")
]


class NewDataset(Body, json_schema_extra={"examples": [{"name": "pdb", "uri": "s3://bucket/pdb"}]}):
    """A name for a dataset at some place."""

    name: NewName
    uri: Uri = Field(description="path, file:// or s3:// URI, as the service sees it")
    description: Message = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetView:
    """A dataset; `uri` is null for tokens that only read."""

    name: str
    uri: str | None
    description: str
    created_at: str


class DatasetPage(BaseModel):
    """Datasets in order of name."""

    datasets: list[DatasetView]
    next: str | None = Field(description="`after` of the next page; null at the end")


@router.post(
    "", status_code=201, responses={200: {"model": DatasetView, "description": "it was known"}}
)
@scope("publish")
def register_dataset(ctx: Context, new: NewDataset, response: Response) -> DatasetView:
    """Make a dataset known by name; once more with another description changes that."""
    catalog, by = ctx.service.catalog, ctx.principal
    by.require_dataset(new.name)
    place = require_root(ctx.service.settings, by, new.uri, "EVOFEED_DATASET_ROOTS")
    exists = any(row.name == new.name for row in catalog.datasets(only=frozenset({new.name})))
    row = catalog.register(
        new.name, new.uri, place=place, description=new.description, principal=by.id
    )
    response.status_code = 200 if exists else 201
    response.headers["Location"] = f"/v1/datasets/{row.name}"
    return _view(row, by)


@router.get("")
@scope("read")
def list_datasets(ctx: Context, after: After = "", limit: Limit = 100) -> DatasetPage:
    """Datasets this token may see."""
    # A token for some datasets names them all, so the page is cut after choosing.
    rows = ctx.service.catalog.datasets(after, limit + 1, ctx.principal.datasets)
    more = rows[limit - 1].name if len(rows) > limit else None
    return DatasetPage(datasets=[_view(row, ctx.principal) for row in rows[:limit]], next=more)


@router.get("/{name}")
@scope("read")
def get_dataset(ctx: Context, name: DatasetName) -> DatasetView:
    """One dataset."""
    return _view(ctx.service.catalog.dataset(name), ctx.principal)


@router.delete("/{name}", status_code=204, response_class=Response)
@scope("admin")
def remove_dataset(ctx: Context, name: DatasetName) -> None:
    """Forget the name, its ref history and its jobs; the files stay where they are."""
    ctx.service.catalog.remove(name, ctx.principal.id)


def _view(row: DatasetRow, principal: Principal) -> DatasetView:
    return view_of(DatasetView, row, uri=row.uri if principal.sees_places else None)

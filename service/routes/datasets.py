"""Datasets: register, list, get, forget."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri, require_root
from evofeed.service.clock import iso
from evofeed.service.database.tables import DatasetRow
from evofeed.service.names import NAME_PATTERN, DatasetName, Message, NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.body import Body
from evofeed.service.requests.routing import Limit, PrincipalDep, ServiceDep, make_router, scope

router = make_router("/v1/datasets", "datasets")


class NewDataset(Body):
    """A name for a dataset at some place."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "pdb", "uri": "s3://bucket/pdb"}]},
    )

    name: NewName
    uri: Uri = Field(description="path, file:// or s3:// URI, as the service sees it")
    description: Message = ""


class DatasetChange(Body):
    """What may change of a dataset."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"description": "all of the PDB"}]})

    description: Message


class DatasetView(BaseModel):
    """A dataset."""

    name: str
    uri: str | None = Field(description="null for tokens that only read")
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
def register_dataset(
    service: ServiceDep, principal: PrincipalDep, new: NewDataset, response: Response
) -> DatasetView:
    """Make a dataset known by name; repeating it changes nothing."""
    principal.require_dataset(new.name)
    require_root(service.settings, principal, new.uri, "EVOFEED_DATASET_ROOTS")
    known = new.name in {row.name for row in service.catalog.datasets(only=frozenset({new.name}))}
    row = service.catalog.register(
        new.name, new.uri, description=new.description, principal=principal.id
    )
    if known and new.description not in ("", row.description):
        raise Problem(
            409,
            "dataset_exists",
            f"dataset {new.name!r} is known and has another description",
            next="change it with PATCH /v1/datasets/{name}",
        )
    response.status_code = 200 if known else 201
    response.headers["Location"] = f"/v1/datasets/{row.name}"
    return _view(row, principal)


@router.get("")
@scope("read")
def list_datasets(
    service: ServiceDep,
    principal: PrincipalDep,
    after: Annotated[
        str, Query(pattern=rf"^$|{NAME_PATTERN}", description="`next` of the page before")
    ] = "",
    limit: Limit = 100,
) -> DatasetPage:
    """Datasets this token may see."""
    # A token for some datasets names them all, so the page is cut after choosing.
    only = principal.datasets
    rows = service.catalog.datasets(after, limit + 1, only)
    more = rows[limit - 1].name if len(rows) > limit else None
    return DatasetPage(datasets=[_view(row, principal) for row in rows[:limit]], next=more)


@router.get("/{name}")
@scope("read")
def get_dataset(service: ServiceDep, principal: PrincipalDep, name: DatasetName) -> DatasetView:
    """One dataset."""
    return _view(service.catalog.dataset(name), principal)


@router.patch("/{name}")
@scope("publish")
def describe_dataset(
    service: ServiceDep, principal: PrincipalDep, name: DatasetName, change: DatasetChange
) -> DatasetView:
    """Change what is said of a dataset."""
    return _view(service.catalog.describe(name, change.description, principal.id), principal)


@router.delete("/{name}", status_code=204, response_class=Response)
@scope("admin")
def remove_dataset(service: ServiceDep, principal: PrincipalDep, name: DatasetName) -> None:
    """Forget the name, its ref history and its jobs; the files stay where they are."""
    place = service.catalog.remove(name, principal.id)
    if service.links:
        service.links.end(place)


def _view(row: DatasetRow, principal: Principal) -> DatasetView:
    return DatasetView(
        name=row.name,
        uri=row.uri if principal.sees_places else None,
        description=row.description,
        created_at=iso(row.created_at),
    )

"""Training runs: folders that are registered with the dataset they are about."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from evofeed.service import runs
from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri, canonical_place, require_root
from evofeed.service.database.tables import RunRow
from evofeed.service.names import NAME_PATTERN, Message, NewName
from evofeed.service.problems import Problem
from evofeed.service.requests.body import Body, Instant, view_of
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.state import Service

router = make_router("/v1/runs", "runs")
RunName = Annotated[str, Path(pattern=NAME_PATTERN, description="run")]


class NewRun(
    Body,
    json_schema_extra={
        "examples": [{"name": "first", "dataset": "pdb", "folder": "/data/runs/first"}]
    },
):
    """A run's folder to register."""

    name: NewName
    dataset: NewName
    folder: Uri = Field(description="what `evofeed train --out` wrote, as the service sees it")
    description: Message = ""


class RunView(BaseModel):
    """A training run."""

    name: str
    dataset: str
    folder: str | None = Field(description="null for tokens that only read")
    description: str
    created_at: Instant
    principal: str


class RunList(BaseModel):
    """Runs, newest first; at most 200."""

    runs: list[RunView]


class Curve(BaseModel):
    """One number of a run, step by step."""

    steps: list[int]
    values: list[float | None] = Field(description="null: it was not finite")


class Curves(BaseModel):
    """Every number that a run's steps hold, and what the run says of itself."""

    facts: dict[str, str]
    curves: dict[str, Curve] = Field(description="`loss`, `terms: ...`, `metrics: ...`, ...")


@router.post("", status_code=201)
@scope("publish")
def register_run(
    service: ServiceDep, principal: PrincipalDep, new: NewRun, response: Response
) -> RunView:
    """Register a run's folder."""
    principal.require_dataset(new.dataset)
    if "://" in new.folder:
        raise Problem(422, "bad_uri", "a run's folder is a path", next="give an absolute path")
    require_root(service.settings, principal, new.folder, "EVOFEED_INPUT_ROOTS")
    dataset = service.catalog.dataset(new.dataset)
    folder = canonical_place(new.folder)
    runs.add_run(service.database, dataset, new.name, folder, new.description, principal.id)
    response.headers["Location"] = f"/v1/runs/{new.name}"
    return _view(*own_run(service, principal, new.name), principal)


@router.get("")
@scope("read")
def list_runs(service: ServiceDep, principal: PrincipalDep) -> RunList:
    """The runs of datasets that this token may see."""
    found = runs.list_runs(service.database, principal.datasets)
    return RunList(runs=[_view(*one, principal) for one in found])


@router.get("/{run}")
@scope("read")
def get_run(service: ServiceDep, principal: PrincipalDep, run: RunName) -> RunView:
    """One run."""
    return _view(*own_run(service, principal, run), principal)


@router.get("/{run}/curves")
@scope("read", heavy=True)
def get_curves(service: ServiceDep, principal: PrincipalDep, run: RunName) -> Curves:
    """Its curves, of the last 64 MiB of steps."""
    row, _ = own_run(service, principal, run)
    facts: dict[str, Any] = runs.read_facts(row.folder) if principal.sees_places else {}
    found = runs.read_curves(row.folder)
    curves = {name: Curve(steps=steps, values=values) for name, (steps, values) in found.items()}
    return Curves(facts=facts, curves=curves)


@router.delete("/{run}", status_code=204, response_class=Response)
@scope("publish")
def forget_run(service: ServiceDep, principal: PrincipalDep, run: RunName) -> None:
    """Forget a run; its folder stays as it is."""
    own_run(service, principal, run)
    runs.forget_run(service.database, run, principal.id)


def own_run(service: Service, principal: Principal, name: str) -> tuple[RunRow, str]:
    """A run this principal may see, and its dataset; another's run is not mentioned."""
    row, dataset = runs.find_run(service.database, name)
    if principal.datasets is not None and dataset not in principal.datasets:
        raise Problem(404, "not_found", f"no run {name!r}", next="list: GET /v1/runs")
    return row, dataset


def _view(row: RunRow, dataset: str, principal: Principal) -> RunView:
    folder = row.folder if principal.sees_places else None
    return view_of(RunView, row, dataset=dataset, folder=folder)

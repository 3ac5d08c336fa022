"""Training runs: their curves, two beside each other, their structure and pictures."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from markupsafe import Markup
from pydantic import StringConstraints
from starlette.responses import HTMLResponse, Response

from evofeed.drawing.run_charts import loss_charts, validation_charts
from evofeed.drawing.structure_view import pair_view
from evofeed.service import runs
from evofeed.service.names import NAME_PATTERN
from evofeed.service.pages.page import render, see_other
from evofeed.service.requests.forms import FormDep, filled
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes import runs as routes

router = make_router("/ui/runs", tag="pages")


@router.get("", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
def runs_page(request: Request, service: ServiceDep, principal: PrincipalDep) -> HTMLResponse:
    """The runs of datasets that whoever asks may see."""
    found = runs.list_runs(service.database, principal.datasets)
    datasets = service.catalog.datasets(limit=200, only=principal.datasets)
    return render("runs.html", request, principal, runs=found, datasets=datasets)


@router.post("", include_in_schema=False)
@scope("publish", form=True)
def register_run(service: ServiceDep, principal: PrincipalDep, fields: FormDep) -> Response:
    """Register a run's folder."""
    names = ("name", "dataset", "folder", "description")
    new = filled(routes.NewRun, {name: fields.text(name) for name in names})
    routes.register_run(service, principal, new, Response())
    return see_other(f"/ui/runs/{new.name}")


@router.post("/{run}/forget", include_in_schema=False)
@scope("publish", form=True)
def forget_run(service: ServiceDep, principal: PrincipalDep, run: routes.RunName) -> Response:
    """Forget a run; its folder stays as it is."""
    routes.forget_run(service, principal, run)
    return see_other("/ui/runs")


@router.get("/{run}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def run_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    run: routes.RunName,
    beside: Annotated[
        Annotated[str, StringConstraints(pattern=rf"^$|{NAME_PATTERN}")], Query()
    ] = "",
) -> HTMLResponse:
    """A run's curves, and those of another beside them."""
    shown = [
        routes.own_run(service, principal, name) for name in dict.fromkeys([run, beside]) if name
    ]
    curves = [runs.read_curves(row.folder) for row, _ in shown]
    structures = [
        pair_view(*found, f"first validated chain of {row.name}", i)
        for i, (row, _) in enumerate(shown)
        if (found := runs.read_structure(row.folder)) is not None
    ]
    others = [row.name for row, _ in runs.list_runs(service.database, principal.datasets)]
    return render(
        "run.html",
        request,
        principal,
        shown=shown,
        facts=[runs.read_facts(row.folder) if principal.sees_places else {} for row, _ in shown],
        losses=[Markup(one) for one in loss_charts(curves)],
        validation=[Markup(one) for one in validation_charts(curves)],
        structures=[Markup(one) for one in structures],
        pictures=[(row.name, runs.pictures_of(row.folder)) for row, _ in shown],
        others=[name for name in others if name != run],
        beside=beside,
    )


@router.get("/{run}/pictures/{file}", include_in_schema=False)
@scope("read")
def run_picture(
    service: ServiceDep,
    principal: PrincipalDep,
    run: routes.RunName,
    file: Annotated[str, Path(max_length=200)],
) -> Response:
    """A picture in a run's folder."""
    row, _ = routes.own_run(service, principal, run)
    data = runs.read_picture(row.folder, file)
    return Response(data, media_type="image/png", headers={"Cache-Control": "private, max-age=60"})

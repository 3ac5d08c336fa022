"""What forms of the pages do: each is the route of the same name, with its rights and checks."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

from starlette.responses import Response

from evofeed.service.access.auth import Principal
from evofeed.service.names import NAME_PATTERN, DatasetName, RefName
from evofeed.service.pages.page import see_other
from evofeed.service.problems import Problem
from evofeed.service.refs.policies import policies_of
from evofeed.service.requests.body import strict_json
from evofeed.service.requests.forms import Fields, FormDep, filled
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes import datasets, jobs, refs
from evofeed.service.state import Service

router = make_router("/ui", tag="pages")
_APART: Final = ("dataset", "ref", "clusters")
_JOB_TEXTS: Final = ("dataset", "input_uri", "message", "preset", "executor")


@router.post("/datasets", include_in_schema=False)
@scope("publish", form=True)
def register(service: ServiceDep, principal: PrincipalDep, fields: FormDep) -> Response:
    """Make a dataset known by name."""
    names = ("name", "uri", "description")
    new = filled(datasets.NewDataset, {name: fields.text(name) for name in names})
    made = datasets.register_dataset(service, principal, new, Response())
    return see_other(f"/ui/datasets/{made.name}")


@router.post("/jobs", include_in_schema=False)
@scope("jobs", form=True)
def submit(service: ServiceDep, principal: PrincipalDep, fields: FormDep) -> Response:
    """Queue a job."""
    values: dict[str, Any] = {name: fields.text(name) or None for name in _JOB_TEXTS}
    numbers = {name: fields.number(name) for name in ("workers", "deadline", "max_broken")}
    values |= {
        name: value if name == "workers" or value is None else float(value)
        for name, value in numbers.items()
    }
    new = filled(jobs.NewJob, values)
    new = new.model_copy(update={"ref": _ref(fields)})
    made = jobs.submit_job(service, principal, new, Response())
    return see_other(f"/ui/jobs/{made.id}")


@router.post("/jobs/{job_id}/cancel", include_in_schema=False)
@scope("jobs", form=True)
def cancel(service: ServiceDep, principal: PrincipalDep, job_id: jobs.JobId) -> Response:
    """Ask a job to stop."""
    jobs.cancel_job(service, principal, job_id)
    return see_other(f"/ui/jobs/{job_id}")


@router.post("/jobs/{job_id}/retry", include_in_schema=False)
@scope("jobs", form=True)
def retry(service: ServiceDep, principal: PrincipalDep, job_id: jobs.JobId) -> Response:
    """Queue an ended job again."""
    jobs.retry_job(service, principal, job_id)
    return see_other(f"/ui/jobs/{job_id}")


@router.post("/datasets/{name}/refs", include_in_schema=False)
@scope("publish", form=True)
def move(
    service: ServiceDep, principal: PrincipalDep, name: DatasetName, fields: FormDep
) -> Response:
    """Point a ref at a snapshot, if it is still where the page has shown it."""
    ref = _named(fields)
    values = {"digest": fields.text("digest"), "message": fields.text("message")}
    target = filled(refs.RefTarget, values)
    shown = fields.text(f"expect.{ref}")
    refs.put_ref(
        service,
        principal,
        name,
        ref,
        target,
        Response(),
        if_match=f'"{shown}"' if shown else None,
        if_none_match=None if shown else "*",
    )
    return see_other(f"/ui/datasets/{name}?ref={ref}#history")


@router.post("/datasets/{name}/refs/{ref}/policy", include_in_schema=False)
@scope("admin", form=True)
def set_policy(
    service: ServiceDep, principal: PrincipalDep, name: DatasetName, ref: RefName, fields: FormDep
) -> Response:
    """Replace what must hold when a ref moves."""
    return _set_policy(service, principal, name, ref, fields)


@router.post("/datasets/{name}/policies", include_in_schema=False)
@scope("admin", form=True)
def set_coming_policy(
    service: ServiceDep, principal: PrincipalDep, name: DatasetName, fields: FormDep
) -> Response:
    """Say what must hold for a ref that is not there yet, and of which nothing was said."""
    ref = _named(fields)
    there = {one.name for one in service.catalog.view(name).refs()}
    if ref in there | set(policies_of(service.database, service.catalog.dataset(name).id)):
        raise Problem(
            409,
            "policy_there",
            f"ref {ref!r} is there, or what must hold for it is set already",
            next="go back and change it in the form of that ref",
        )
    return _set_policy(service, principal, name, ref, fields)


def _set_policy(
    service: Service, principal: Principal, name: str, ref: str, fields: Fields
) -> Response:
    columns = (fields.column(f"apart.{part}") for part in _APART)
    apart = itertools.zip_longest(*columns, fillvalue="")
    values = {
        "protected": fields.text("protected") == "true",
        "reviewer": fields.text("reviewer") or "publish",
        "forbid": [_filter(line) for line in fields.text("forbid").splitlines() if line.strip()],
        "apart_from": [
            {part: text for part, text in zip(_APART, row, strict=True) if text}
            for row in apart
            if any(row)
        ],
    }
    refs.put_policy(service, principal, name, ref, filled(refs.PolicyBody, values))
    there = {one.name for one in service.catalog.view(name).refs()}
    return see_other(f"/ui/datasets/{name}{f'?ref={ref}' if ref in there else ''}#history")


def _filter(line: str) -> Any:
    try:
        return strict_json(line)
    except (ValueError, RecursionError):
        raise Problem(
            422,
            "bad_request",
            f"forbid: {line[:60]!r} is no JSON",
            next='such as {"column": "release_date", "op": ">=", "value": "2021-10-01"}; go back',
        ) from None


def _named(fields: Fields) -> str:
    ref = _ref(fields)
    if ref is None:
        raise Problem(422, "bad_request", "ref: it has no name", next="go back and name it")
    return ref


def _ref(fields: Fields) -> str | None:
    """A ref's name; None if the field was left empty."""
    text = fields.text("ref")
    if text and not re.fullmatch(NAME_PATTERN, text):
        raise Problem(
            422,
            "bad_request",
            f"ref: {text[:40]!r} cannot name a ref",
            next="letters, digits, dot, dash and underscore; go back and correct it",
        )
    return text or None

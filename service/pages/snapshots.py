"""Snapshots: the difference of two, and the data card of one."""

from __future__ import annotations

import json
from typing import Annotated, Final, Literal

from fastapi import Path, Query, Request
from pydantic import StringConstraints
from starlette.responses import HTMLResponse, Response

from evofeed.service.names import NAME_PATTERN, DatasetName, Digest
from evofeed.service.pages.page import address, render
from evofeed.service.requests.ranges import immutable_response
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.statistics import digest_of

router = make_router("/ui/datasets/{name}", tag="pages")
_ROWS: Final = 200  # chains of a page
Named = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Change = Literal["added", "removed", "changed"]


@router.get("/diff", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def diff_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    before: Annotated[Named, Query(description="ref or digest")],
    after: Annotated[Named, Query(description="ref or digest")] = "main",
    change: Change = "added",
    page: Annotated[int, Query(ge=1, le=10**7)] = 1,
) -> HTMLResponse:
    """Chains that one of two snapshots has and the other has not, or has otherwise."""
    old, new = (digest_of(service, name, either) for either in (before, after))
    found = service.catalog.difference(name, old, new)
    kinds = {"added": found.added, "removed": found.removed, "changed": found.changed}
    ids = kinds[change]
    pages = max(1, -(-len(ids) // _ROWS))
    at = min(page, pages)
    view = service.catalog.view(name)
    return render(
        "diff.html",
        request,
        principal,
        dataset=name,
        before=old,
        after=new,
        counts={kind: len(chains) for kind, chains in kinds.items()},
        sizes=[view.manifest(digest).num_chains for digest in (old, new)],
        change=change,
        ids=ids[(at - 1) * _ROWS : at * _ROWS],
        page=at,
        pages=pages,
        link=lambda **changes: address(
            f"/ui/datasets/{name}/diff",
            **({"before": old, "after": new, "change": change} | changes),
        ),
    )


@router.get("/snapshots/{snapshot}/card", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def card_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    snapshot: Annotated[str, Path(pattern=NAME_PATTERN, description="ref or digest")],
) -> HTMLResponse:
    """What a snapshot holds, what was left out and why."""
    row = service.catalog.dataset(name)
    card = service.catalog.card(name, digest_of(service, name, snapshot))
    return render("card.html", request, principal, dataset=row, card=card)


@router.get("/snapshots/{digest}/croissant.json", include_in_schema=False)
@scope("read", heavy=True)
def croissant(request: Request, service: ServiceDep, name: DatasetName, digest: Digest) -> Response:
    """The card as Croissant JSON-LD."""
    card = service.catalog.card(name, digest)
    data = json.dumps(card.to_croissant(), indent=2).encode()
    return immutable_response(
        request,
        etag=f'"croissant-{digest}"',
        size=len(data),
        read=lambda offset, length: data[offset : offset + length],
        media_type="application/ld+json",
    )

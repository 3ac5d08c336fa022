"""The complexes of a snapshot, found by what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import Path, Query, Request
from markupsafe import Markup
from pydantic import StringConstraints
from starlette.responses import HTMLResponse

from evofeed.service.filters import evaluator as filters
from evofeed.service.names import NAME_PATTERN, DatasetName
from evofeed.service.pages.charts import Brush, histogram
from evofeed.service.pages.page import FormQuery, address, render
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.assemblies import AssemblyQuery
from evofeed.service.routes.statistics import digest_of
from evofeed.store.inner import column_statistics

router = make_router("/ui/datasets/{name}/snapshots", tag="pages")
_ROWS: Final = 50  # complexes of a page
_KINDS: Final = 24  # stoichiometries to choose from
_COLUMNS: Final = (
    "assembly_id", "stoichiometry", "num_chains", "num_entities", "num_res", "num_interface",
    "resolution", "release_date", "method",
)  # fmt: skip
_CHARTS: Final = (  # column, title, unit, parameters that a bar sets
    ("num_chains", "Chains", "copies included", "min_chains", "max_chains"),
    ("num_interface", "Interface size", "residues near another chain", "min_interface", ""),
    ("num_res", "Length", "residues of all chains", "", "max_length"),
)


class AssembliesQuery(FormQuery, AssemblyQuery):
    """As AssemblyQuery, from a form."""

    sort: Literal[_COLUMNS] = "assembly_id"  # type: ignore[valid-type]


@router.get("/{snapshot}/assemblies", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def assemblies_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    snapshot: Annotated[
        Annotated[str, StringConstraints(pattern=NAME_PATTERN)],
        Path(description="ref or digest"),
    ],
    query: Annotated[AssembliesQuery, Query()],
) -> HTMLResponse:
    """The complexes that are asked for."""
    digest = digest_of(service, name, snapshot)
    table = service.catalog.assemblies(name, digest)
    found = _matching(table, query.search().where)
    rows = found.sort_by(
        [(query.sort, "descending" if query.desc else "ascending"), ("assembly_id", "ascending")]
    )
    pages = max(1, -(-len(rows) // _ROWS))
    at = min(query.page, pages)
    path = f"/ui/datasets/{name}/snapshots/{digest}/assemblies"

    def link(**changes: Any) -> str:
        return address(path, **query.kept(**changes))

    config = service.catalog.snapshot(name, digest).manifest.config
    return render(
        "assemblies.html",
        request,
        principal,
        dataset=name,
        digest=digest,
        query=query,
        link=link,
        path=path,
        total=len(table),
        matched=len(rows),
        columns=_COLUMNS,
        assemblies=rows.select(list(_COLUMNS)).slice((at - 1) * _ROWS, _ROWS).to_pylist(),
        page=at,
        pages=pages,
        charts=_charts(table, found, link),
        kinds=_kinds(table, query, link),
        dropped=config.get("assemblies", {}).get("dropped", []),
    )


def _matching(table: pa.Table, where: Any) -> pa.Table:
    if where is None:
        return table
    filters.check(table.schema, where)
    return table.filter(filters.match(table, where))


def _charts(table: pa.Table, found: pa.Table, link: Callable[..., str]) -> list[Markup]:
    """A chart a column: all complexes pale, those asked for before them; each bar is a filter."""
    every = column_statistics(table.select([column for column, *_ in _CHARTS]))
    charts = []
    for column, title, unit, low, high in _CHARTS:
        edges = every[column].get("edges")
        if not edges:
            continue
        links = [
            link(**({low: a} if low else {}), **({high: b - 1} if high else {}))
            for a, b in pairwise(edges)
        ]
        counts, _ = np.histogram(found[column].to_numpy(), np.asarray(edges, np.float64))
        brush = Brush(links, low, high, edges, whole=True)
        charts.append(histogram(every[column], title, unit, counts.tolist(), brush))
    return charts


def _kinds(
    table: pa.Table, query: AssembliesQuery, link: Callable[..., str]
) -> list[dict[str, Any]]:
    """Stoichiometries to choose from, each with its count where all other filters hold."""
    others = _matching(table, query.model_copy(update={"stoichiometry": None}).search().where)
    counts = pc.value_counts(others["stoichiometry"]).to_pylist()
    counts.sort(key=lambda one: (-one["counts"], one["values"]))
    chosen = query.stoichiometry or []
    known = {one["values"]: one["counts"] for one in counts[:_KINDS]}
    known |= {kind: known.get(kind, 0) for kind in chosen}
    return [
        {
            "label": kind,
            "count": count,
            "on": kind in chosen,
            "link": link(
                stoichiometry=[one for one in chosen if one != kind]
                if kind in chosen
                else [*chosen, kind]
            ),
        }
        for kind, count in known.items()
    ]

"""One dataset: find what is in it, its snapshots, where its refs have been, and its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
from fastapi import Query
from pydantic import Field, model_validator
from starlette.responses import HTMLResponse

from evofeed.service.names import DIGEST_PATTERN, DatasetName, NewName
from evofeed.service.pages.listings import LISTINGS, Listing
from evofeed.service.pages.page import render
from evofeed.service.requests.forms import bad_field
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.routes.rows import RowQuery
from evofeed.service.snapshots.catalog import snapshots_of
from evofeed.service.snapshots.rows import Question, rows_of
from evofeed.service.state import Service

Link = Callable[..., str]
"""The page's own question with changed parameters."""
_MOST: Final = 40  # bars of named values
_TICKS: Final = 5


class Bar(NamedTuple):
    """One bar: its range or name, how many there are, how many are asked for, where it leads."""

    label: str
    total: int
    found: int
    link: str = ""


class Chart(NamedTuple):
    """Bars as a template draws them: all pale, those asked for before them; ticks by bar."""

    title: str
    unit: str
    bars: Sequence[Bar]
    ticks: Mapping[float, str]


router = make_router("/ui/datasets/{name}", tag="pages")
_ROWS: Final = 50  # of a page
_FACETS: Final = 24  # values of a column to choose from
_FLAGS: Final = ("has_structure", "is_distillation")


class PageQuery(RowQuery):
    """As RowQuery, from a form: a field left empty is not asked for."""

    table: Literal["chains", "assemblies", "entries"] = "chains"
    ref: NewName = Field("main", description="whose snapshot")
    at: str | None = Field(None, pattern=DIGEST_PATTERN, description="snapshot, before `ref`")
    q: str = Field("", max_length=128, description="part of the id, in any case")
    sort: str = Field("", max_length=64, description="column; none: the id")
    desc: bool = False
    page: int = Field(1, ge=1, le=10**8)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Any) -> Any:
        return {name: value for name, value in values.items() if value not in ("", [""])}

    def link_params(self, **changes: Any) -> dict[str, Any]:
        """Parameters of a link to this query; `changes` to it lead to the first page."""
        named = self.model_dump(exclude={"cursor", "columns", "limit", "count"})
        named |= {"page": 1} | changes
        fields = type(self).model_fields
        return {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in named.items()
            if value not in (None, [], fields[name].default)
        }


@router.get("", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def dataset_page(
    ctx: Context, name: DatasetName, query: Annotated[PageQuery, Query()]
) -> HTMLResponse:
    """One dataset: what its snapshot holds, and the rows that are asked for."""
    service = ctx.service
    row, view = service.catalog.dataset(name), service.catalog.view(name)
    refs, jobs = view.refs(), service.jobs.newest(only=frozenset({name}), limit=20)
    if not refs:
        return render("dataset.html", ctx.request, ctx.principal, dataset=row, refs=refs, jobs=jobs)
    ref = service.refs.note(name, query.ref)
    digest = query.at or ref.digest
    manifest = view.manifest(digest)
    if "table" not in query.model_fields_set and manifest.entries and not manifest.num_chains:
        query = query.model_copy(update={"table": "entries"})
    listing = LISTINGS[query.table]
    if (sort := query.sort or listing.sorts[0]) not in listing.sorts:
        raise bad_field("sort", f"{sort!r} is none of {', '.join(listing.sorts)}")
    question = _question(query, name, digest)
    every = service.catalog.table(name, digest, query.table)
    rows = service.finder.ordered(question, sort, query.desc)
    pages = max(1, -(-len(rows) // _ROWS))
    page = min(query.page, pages)
    shown = every.select(listing.columns).take(pa.array(rows[(page - 1) * _ROWS :][:_ROWS]))
    snapshots = snapshots_of(service.database, row.id, view)[:20]

    def link(**changes: Any) -> str:
        params = urlencode(query.link_params(**changes), doseq=True)
        return f"/ui/datasets/{name}" + (f"?{params}" if params else "")

    return render(
        "dataset.html", ctx.request, ctx.principal, dataset=row, ref=ref, refs=refs, digest=digest,
        jobs=jobs, listings=LISTINGS, manifest=manifest, query=query, listing=listing,
        link=link, sort=sort, total=every.num_rows, matched=len(rows), rows=rows_of(shown),
        page=page, pages=pages, charts=_charts(service, question, listing, link),
        facets=[(title, column, _facet(service, query, question, column))
                for column, title in listing.facets],
        snapshots=[(digest, when, view.manifest(digest)) for digest, when in snapshots],
        moves=service.refs.history(name, query.ref, 10),
        policy=service.refs.policy(name, query.ref),
    )  # fmt: skip


def _question(query: PageQuery, name: str, digest: str, without: str = "") -> Question:
    """The query as a question, `without` one of the filters."""
    search = query.model_copy(update={without: None} if without else {}).search()
    where = json.dumps(search.where, sort_keys=True)
    return Question(name, digest, query.table, where, query.q)


def _charts(service: Service, question: Question, listing: Listing, link: Link) -> list[Chart]:
    """A chart a column: all pale, those asked for before them; each bar is a filter."""
    every = service.catalog.statistics(question.dataset, question.digest, question.table)
    charts = []
    for column, title, unit, low, high in listing.charts:
        if edges := every[column].get("edges"):
            counts = service.finder.counts(question, column, tuple(edges))
            bars = _bins(every[column], counts, link, low, high)
            step = max(1, round(len(bars) / _TICKS))
            alone = edges[1] - edges[0] == 1 and isinstance(edges[0], int)  # a value a bar
            ticks = {i + alone / 2: _short(edges[i]) for i in range(0, len(edges) - alone, step)}
            charts.append(Chart(title, unit, bars, ticks))
    if values := every["release_date"].get("years"):
        found_years = service.finder.groups(question, "release_date", years=True)
        bars = _years(values, found_years, link)
        step = max(1, round(len(bars) / 6))
        ticks = {i + 0.5: bar.label for i, bar in enumerate(bars) if i % step == 0}
        charts.append(Chart("Released in", "", bars, ticks))
    return charts


def _bins(
    statistics: Mapping[str, Any], counts: Sequence[int], link: Link, low: str, high: str
) -> list[Bar]:
    """A bar for each bin of a numeric column; `low` and `high` are the parameters it sets."""
    is_integer = statistics["kind"] == "integer"
    bars = []
    ranges = pairwise(statistics["edges"])
    for (a, b), total, some in zip(ranges, statistics["counts"], counts, strict=True):
        last = b - is_integer  # a range of integers ends below its last edge
        params = {name: value for name, value in ((low, a), (high, last)) if name}
        label = _short(a) if is_integer and last == a else f"{_short(a)} to {_short(last)}"
        bars.append(Bar(label, total, some, link(**params) if total else ""))
    return bars


def _years(values: Mapping[str, int], counts: Mapping[str, int], link: Link) -> list[Bar]:
    """A bar for each year, the last of them."""
    bars = []
    for year, total in list(values.items())[-_MOST:]:
        leads = ""
        if year.isdecimal() and total:
            after = f"{int(year) + 1:04d}-01-01"
            leads = link(released_from=f"{year}-01-01", released_before=after)
        bars.append(Bar(year, total, counts.get(year, 0), leads))
    return bars


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _facet(
    service: Service, query: PageQuery, question: Question, column: str
) -> list[tuple[str, int, bool, Any]]:
    """Values of a column to choose from: name, count where all other filters hold, whether it is
    chosen, and what choosing it asks for."""
    others = _question(query, question.dataset, question.digest, without=column)
    counts, now = service.finder.groups(others, column), getattr(query, column)
    if column in _FLAGS:
        return [
            (label, counts.get(str(value), 0), now is value, None if now is value else value)
            for value, label in ((True, "yes"), (False, "no"))
        ]
    fold = str.lower if column == "method" else str
    chosen = [fold(text) for text in now or ()]
    spelt = {fold(text): count for text, count in counts.items()}
    shown = sorted(spelt, key=lambda text: (-spelt[text], text))[:_FACETS]
    return [
        (text, spelt.get(text, 0), text in chosen,
         [o for o in chosen if o != text] if text in chosen else [*chosen, text])
        for text in dict.fromkeys([*shown, *chosen])
    ]  # fmt: skip

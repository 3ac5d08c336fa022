"""One dataset: find chains or complexes in it, its snapshots, and where its refs have been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, Response

from evofeed.service.access.auth import Principal
from evofeed.service.names import DIGEST_PATTERN, DatasetName, NewName
from evofeed.service.pages.charts import Chart, Link, histogram, years
from evofeed.service.pages.page import FormQuery, address, render
from evofeed.service.refs.history import note_ref, ref_history
from evofeed.service.refs.policies import policy_of
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.routes.rows import AssemblyQuery, ChainQuery, Kind, digest_of, exported
from evofeed.service.snapshots import export
from evofeed.service.snapshots.find import Question
from evofeed.service.snapshots.rows import rows_of
from evofeed.service.snapshots.seen import snapshots_of
from evofeed.service.state import Service
from evofeed.store.inner import column_statistics

router = make_router("/ui/datasets/{name}", tag="pages")
_ROWS: Final = 50  # of a page
_FACETS: Final = 24  # values of a column to choose from
_FLAGS: Final = ("has_structure", "is_distillation")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """How a table is shown.

    Attributes:
        path: of its page, below the dataset's.
        nouns: what one row is, and several.
        columns: that are shown, the id first.
        sorts: columns it may be in the order of.
        fields: title, kind and parameters of each input of its form.
        charts: column, title, unit and the parameters that a bar sets.
        facets: column and title; the column is the parameter too.
    """

    path: str
    nouns: tuple[str, str]
    columns: tuple[str, ...]
    sorts: tuple[str, ...]
    fields: tuple[tuple[str, str, tuple[str, ...]], ...]
    charts: tuple[tuple[str, str, str, str, str], ...]
    facets: tuple[tuple[str, str], ...]


_COMMON: Final = (
    ("resolution, at most (Å)", "number", ("max_resolution",)),
    ("released", "date", ("released_from", "released_before")),
)
_CHAIN_SORTS: Final = (
    "chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date",
    "method", "cluster_size",
)  # fmt: skip
_ASSEMBLY_SORTS: Final = (
    "assembly_id", "stoichiometry", "num_chains", "num_entities", "num_res", "num_interface",
    "resolution", "release_date", "method",
)  # fmt: skip
_CHAINS: Final = _Listing(
    path="",
    nouns=("chain", "chains"),
    columns=(
        "chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date",
        "method", "has_structure",
    ),
    sorts=_CHAIN_SORTS,
    fields=(
        ("length", "number", ("min_length", "max_length")),
        ("depth", "number", ("min_depth", "max_depth")),
        ("templates, at least", "number", ("min_templates",)),
        *_COMMON,
    ),
    charts=(
        ("num_res", "Length", "residues", "min_length", "max_length"),
        ("num_alignments", "Alignment depth", "MSA rows", "min_depth", "max_depth"),
        ("num_templates", "Templates", "kept", "min_templates", ""),
        ("resolution", "Resolution", "ångström, at most", "", "max_resolution"),
    ),
    facets=(("method", "method"), ("has_structure", "structure"),
            ("is_distillation", "distillation")),
)  # fmt: skip
_ASSEMBLIES: Final = _Listing(
    path="/assemblies",
    nouns=("complex", "complexes"),
    columns=_ASSEMBLY_SORTS,
    sorts=_ASSEMBLY_SORTS,
    fields=(
        ("chains, copies included", "number", ("min_chains", "max_chains")),
        ("different sequences", "number", ("min_entities", "max_entities")),
        ("interface, at least", "number", ("min_interface",)),
        ("residues, at most", "number", ("max_length",)),
        *_COMMON,
    ),
    charts=(
        ("num_chains", "Chains", "copies included", "min_chains", "max_chains"),
        ("num_interface", "Interface size", "residues near another chain", "min_interface", ""),
        ("num_res", "Length", "residues of all chains", "", "max_length"),
    ),
    facets=(("stoichiometry", "stoichiometry"),),
)  # fmt: skip


class PageQuery(FormQuery):
    """What every listing takes beside its filters."""

    ref: NewName = Field("main", description="whose snapshot")
    at: str | None = Field(None, pattern=DIGEST_PATTERN, description="snapshot, before `ref`")
    q: str = Field("", max_length=128, description="part of the id, in any case")


class ChainsQuery(PageQuery, ChainQuery):
    """As ChainQuery, from a form."""

    sort: Literal[_CHAIN_SORTS] = "chain_id"  # type: ignore[valid-type]


class AssembliesQuery(PageQuery, AssemblyQuery):
    """As AssemblyQuery, from a form."""

    sort: Literal[_ASSEMBLY_SORTS] = "assembly_id"  # type: ignore[valid-type]


Asked = ChainsQuery | AssembliesQuery


@router.get("", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def dataset_page(
    ctx: Context, name: DatasetName, query: Annotated[ChainsQuery, Query()]
) -> HTMLResponse:
    """One dataset: what its snapshot holds, and the chains that are asked for."""
    return _page(ctx.request, ctx.service, ctx.principal, name, query, _CHAINS)


@router.get("/assemblies", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def assemblies_page(
    ctx: Context, name: DatasetName, query: Annotated[AssembliesQuery, Query()]
) -> HTMLResponse:
    """The complexes of a dataset that are asked for."""
    return _page(ctx.request, ctx.service, ctx.principal, name, query, _ASSEMBLIES)


@router.get("/export.{kind}", include_in_schema=False)
@scope("read", heavy=True)
def export_page(
    ctx: Context, name: DatasetName, kind: Kind, query: Annotated[ChainsQuery, Query()]
) -> Response:
    """The chains that the page lists, in its order, as a file."""
    digest = query.at or digest_of(ctx.service, name, query.ref)
    found = ctx.service.finder.ordered(_question(query, name, digest), query.sort, query.desc)
    index = ctx.service.catalog.snapshot(name, digest).index
    return exported(ctx.service, name, digest, kind, index, found)


def _page(
    request: Request, service: Service, principal: Principal, name: str, query: Asked,
    listing: _Listing,
) -> HTMLResponse:  # fmt: skip
    row, view = service.catalog.dataset(name), service.catalog.view(name)
    refs = view.refs()
    if not refs:
        return render("dataset.html", request, principal, dataset=row, refs=refs)
    ref = note_ref(service.database, row.id, view, query.ref)
    digest = query.at or ref.digest
    question = _question(query, name, digest)
    every = _table(service, question)
    rows = service.finder.ordered(question, query.sort, query.desc)
    pages = max(1, -(-len(rows) // _ROWS))
    page = min(query.page, pages)
    shown = every.select(list(listing.columns)).take(pa.array(rows[(page - 1) * _ROWS :][:_ROWS]))
    seen = snapshots_of(service.database, row.id, view)[:20]

    def link(**changes: Any) -> str:
        return address(f"/ui/datasets/{name}{listing.path}", **query.kept(**changes))

    return render(
        "dataset.html", request, principal, dataset=row, ref=ref, refs=refs, digest=digest,
        manifest=view.manifest(digest), query=query, listing=listing, link=link,
        export=lambda kind: address(f"/ui/datasets/{name}/export.{kind}", **query.kept(at=digest)),
        total=every.num_rows, matched=len(rows), rows=rows_of(shown), page=page, pages=pages,
        charts=_charts(service, question, listing, link),
        facets=[(title, column, _facet(service, query, question, column))
                for column, title in listing.facets],
        fasta_most=export.FASTA_MOST,
        snapshots=[(digest, when, view.manifest(digest)) for digest, when in seen],
        moves=ref_history(service.database, row.id, query.ref, 10),
        policy=policy_of(service.database, row.id, query.ref),
    )  # fmt: skip


def _question(query: Asked, name: str, digest: str, without: str = "") -> Question:
    """What is asked, `without` one of the filters."""
    search = query.model_copy(update={without: None} if without else {}).search()
    complexes = isinstance(query, AssembliesQuery)
    return Question(name, digest, text=query.q, complexes=complexes).asking(search.where)


def _table(service: Service, question: Question) -> pa.Table:
    if question.complexes:
        return service.catalog.assemblies(question.dataset, question.digest)
    return service.catalog.snapshot(question.dataset, question.digest).index


def _charts(service: Service, question: Question, listing: _Listing, link: Link) -> list[Chart]:
    """A chart a column: all pale, those asked for before them; each bar is a filter."""
    if question.complexes:
        every = column_statistics(_table(service, question))
    else:
        every = service.catalog.statistics(question.dataset, question.digest)
    charts = []
    for column, title, unit, low, high in listing.charts:
        if edges := every[column].get("edges"):
            found = service.finder.counts(question, column, edges)
            charts.append(histogram(every[column], title, unit, found, link, low, high))
    if values := every["release_date"].get("years"):
        found_years = service.finder.groups(question, "release_date", years=True)
        charts.append(years(values, found_years, link))
    return [chart for chart in charts if chart is not None]


def _facet(
    service: Service, query: Asked, question: Question, column: str
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
    most = sorted(spelt, key=lambda text: (-spelt[text], text))[:_FACETS]
    return [
        (text, spelt.get(text, 0), text in chosen,
         [o for o in chosen if o != text] if text in chosen else [*chosen, text])
        for text in dict.fromkeys([*most, *chosen])
    ]  # fmt: skip

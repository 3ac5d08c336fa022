"""One dataset: find chains in it, its snapshots, and where its refs have been."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, Response, StreamingResponse

from evofeed.service.names import DIGEST_PATTERN, DatasetName
from evofeed.service.pages import export
from evofeed.service.pages.facets import charts_of, facets_of
from evofeed.service.pages.page import FormQuery, address, render
from evofeed.service.problems import Problem
from evofeed.service.refs.history import note_ref, ref_history
from evofeed.service.refs.policies import Policy, policies_of
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.chains import RefChainQuery
from evofeed.service.routes.refs import APART_MOST
from evofeed.service.snapshots import chains
from evofeed.service.snapshots.find import SORTS, Question
from evofeed.service.snapshots.seen import snapshots_of
from evofeed.service.state import Service

router = make_router("/ui/datasets/{name}", tag="pages")
_ROWS: Final = 50  # chains of a page
_COLUMNS: Final = (
    "chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date",
    "method", "has_structure",
)  # fmt: skip


class PageQuery(FormQuery, RefChainQuery):
    """As RefChainQuery, from a form."""

    at: str | None = Field(None, pattern=DIGEST_PATTERN, description="snapshot, before `ref`")
    q: str = Field("", max_length=128, description="part of the chain's id, in any case")
    sort: Literal[SORTS] = "chain_id"  # type: ignore[valid-type]

    def question(self, name: str, digest: str, without: str = "") -> Question:
        """What is asked, `without` one of the filters."""
        search = self.model_copy(update={without: None} if without else {}).search()
        return Question(name, digest, text=self.q).asking(search.where)


Asked = Annotated[PageQuery, Query()]


@router.get("", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def dataset_page(
    request: Request, service: ServiceDep, principal: PrincipalDep, name: DatasetName, query: Asked
) -> HTMLResponse:
    """One dataset: what its snapshot holds, and the chains that are asked for."""
    row, view = service.catalog.dataset(name), service.catalog.view(name)
    refs = view.refs()
    names = {ref.name for ref in refs}
    policies = policies_of(service.database, row.id)
    coming = {ref: policy for ref, policy in policies.items() if ref not in names}
    policed: dict[str, Any] = {"coming": coming, "apart_most": APART_MOST}
    if not refs:
        return render("unpublished.html", request, principal, dataset=row, **policed)
    ref = note_ref(service.database, row.id, view, query.ref)
    digest = query.at or ref.digest
    manifest = view.manifest(digest)
    question = query.question(name, digest)
    rows = service.finder.ordered(question, query.sort, query.desc)
    pages = max(1, -(-len(rows) // _ROWS))
    at = min(query.page, pages)
    path = f"/ui/datasets/{name}"

    def link(**changes: Any) -> str:
        return address(path, **query.kept(**changes))

    return render(
        "dataset.html",
        request,
        principal,
        dataset=row,
        ref=ref,
        refs=refs,
        digest=digest,
        manifest=manifest,
        query=query,
        link=link,
        export=lambda kind: address(f"{path}/export.{kind}", **query.kept(at=digest)),
        matched=len(rows),
        chains=_shown(service, question, rows[(at - 1) * _ROWS : at * _ROWS]),
        columns=_COLUMNS,
        sorts=SORTS,
        page=at,
        pages=pages,
        charts=charts_of(service, query, question, link),
        facets=facets_of(service, query, question, link),
        fasta_most=export.FASTA_MOST,
        snapshots=[
            (d, when, view.manifest(d))
            for d, when in snapshots_of(service.database, row.id, view)[:20]
        ],
        moves=ref_history(service.database, row.id, query.ref, 10),
        policy=policies.get(query.ref, Policy()),
        **policed,
    )


@router.get("/export.{kind}", include_in_schema=False)
@scope("read", heavy=True)
def export_chains(
    service: ServiceDep, name: DatasetName, kind: Literal["csv", "parquet", "fasta"], query: Asked
) -> Response:
    """The chains that are asked for, as a file; streamed, so that it may be long."""
    digest = query.at or service.catalog.view(name).ref(query.ref).digest
    rows = service.finder.ordered(query.question(name, digest), query.sort, query.desc)
    index = service.catalog.snapshot(name, digest).index
    if kind == "fasta":
        if len(rows) > export.FASTA_MOST:
            raise Problem(
                413,
                "too_many_chains",
                f"{len(rows):,} chains; a FASTA file may have {export.FASTA_MOST:,}",
                next="narrow the filters",
            )
        ids = index["chain_id"].take(pa.array(rows)).to_pylist()
        body = export.fasta(lambda chain: service.catalog.record(name, digest, chain), ids)
    else:
        write = export.csv if kind == "csv" else export.parquet
        body = write(index.select(chains.columns_of(index, None)), rows)
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{name}-{digest[:12]}.{kind}"',
    }
    return StreamingResponse(body, headers=headers, media_type=export.MEDIA[kind])


def _shown(service: Service, question: Question, rows: np.ndarray) -> list[dict[str, Any]]:
    """Rows of the index as a page shows them: what is not known is None."""
    index = service.catalog.snapshot(question.dataset, question.digest).index
    found = chains.rows_of(index.select(list(_COLUMNS)).take(pa.array(rows)))
    return [
        row | {"resolution": row["resolution"] or None, "method": row["method"] or None}
        for row in found
    ]

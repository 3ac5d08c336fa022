"""One chain: its sequence, alignment, distances, templates and structure, and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
import orjson
from fastapi import Path, Request
from pydantic import StringConstraints
from starlette.responses import HTMLResponse, Response

from evofeed.chain_files import to_a3m, to_cif, to_fasta, to_npz
from evofeed.chain_numbers import ca_trace, superposed
from evofeed.chain_record import ChainRecord
from evofeed.drawing.structure_view import chain_view, pair_view
from evofeed.service.names import NAME_PATTERN, DatasetName, Digest
from evofeed.service.pages import chain_pictures as pictures
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import immutable_response
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.statistics import digest_of
from evofeed.service.runs import list_runs, read_prediction
from evofeed.service.snapshots import chains
from evofeed.service.state import Service

router = make_router("/ui/datasets/{name}/snapshots", tag="pages")
ChainId = Annotated[str, Path(pattern=NAME_PATTERN, description="chain id; case matters")]
Either = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Path(description="ref or digest")]
_RUNS: Final = 8  # whose predictions are looked for
_MAX_NBYTES: Final = 256 << 20  # of a chain that is unpacked for a page
_FILES: Final[dict[str, Callable[[ChainRecord], str | bytes]]] = {
    "fasta": to_fasta,
    "a3m": to_a3m,
    "cif": to_cif,
    "npz": to_npz,
}


@router.get("/{snapshot}/chains/{chain_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def chain_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    snapshot: Either,
    chain_id: ChainId,
) -> HTMLResponse:
    """All there is to see of a chain."""
    digest = digest_of(service, name, snapshot)
    row, (before, after) = _row(service, name, digest, chain_id)
    record = _record(service, name, digest, row)
    manifest = service.catalog.snapshot(name, digest).manifest
    return render(
        "chain.html",
        request,
        principal,
        dataset=name,
        digest=digest,
        chain=row,
        record=record,
        before=before,
        after=after,
        blocks=pictures.sequence_blocks(record),
        coverage=pictures.coverage_chart(record),
        identity=pictures.identity_histogram(record),
        scales=pictures.SCALES,
        structure=chain_view(ca_trace(record), "structure, CA atoms"),
        predictions=_predictions(service, name, record),
        templates=pictures.template_rows(record),
        config=manifest.config,
        files=files_of(_FILES, row),
    )


@router.get("/{digest}/chains/{chain_id}/{picture}.png", include_in_schema=False)
@scope("read", heavy=True)
def chain_picture(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    chain_id: ChainId,
    picture: Literal["alignment", "distances"],
) -> Response:
    """A map of a chain, without axes."""
    row, _ = _row(service, name, digest, chain_id)
    if picture == "distances":
        require_structure(row, chain_id)
    draw = pictures.alignment_png if picture == "alignment" else pictures.distances_png
    data = draw(_record(service, name, digest, row))
    return immutable(request, f"{digest[:32]}-{chain_id}-{picture}", data, "image/png")


@router.get("/{digest}/chains/{chain_id}/files/{file}", include_in_schema=False)
@scope("read", heavy=True)
def chain_file(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    chain_id: ChainId,
    file: Annotated[str, Path(max_length=200)],
) -> Response:
    """A chain as a file for other programs: `ID.fasta`, `ID.a3m`, `ID.cif`, `ID.npz`."""
    kind = kind_of(file, chain_id, _FILES)
    row, _ = _row(service, name, digest, chain_id)
    if kind == "cif":
        require_structure(row, chain_id)
    data = _FILES[kind](_record(service, name, digest, row))
    return attachment(request, f"{digest[:32]}-{file}", data, file)


def _row(
    service: Service, name: str, digest: str, chain_id: str
) -> tuple[dict[str, Any], tuple[str | None, str | None]]:
    """A chain's row of the index, and the ids before and after it."""
    snapshot = service.catalog.snapshot(name, digest)
    at = chains.row_of(snapshot, chain_id)
    row: dict[str, Any] = orjson.loads(chains.row_as_json(snapshot.columns, at))
    return row, chains.neighbours(snapshot.index["chain_id"], at)


def _record(service: Service, name: str, digest: str, row: dict[str, Any]) -> ChainRecord:
    cells = row["num_res"] * (row["num_alignments"] + 37 * 13 * row["num_templates"])
    if cells > _MAX_NBYTES:
        raise Problem(
            413,
            "chain_too_large",
            f"{row['chain_id']} would be {cells >> 20} MiB unpacked",
            next="read it with evofeed.store.Dataset.open",
        )
    return service.catalog.record(name, digest, row["chain_id"])


def _predictions(service: Service, name: str, record: ChainRecord) -> list[str]:
    """The chain as runs of this dataset predict it, on the true one."""
    panels: list[str] = []
    true = ca_trace(record)
    known = np.isfinite(true[:, 0])
    for run, _ in list_runs(service.database, frozenset({name}), limit=_RUNS):
        found = read_prediction(run.folder, record.chain_id)
        if found is None:
            continue
        numbers, positions, confidence = found
        kept = (numbers >= 1) & (numbers <= record.num_res)
        kept[kept] &= known[numbers[kept] - 1]
        if kept.sum() < 3:
            continue
        fixed = true[numbers[kept] - 1]
        title = f"predicted by {run.name}, mean pLDDT {confidence.mean():.0f}"
        panels.append(pair_view(superposed(positions[kept], fixed), fixed, title, len(panels) % 4))
    return panels


def immutable(request: Request, tag: str, data: bytes, media: str) -> Response:
    """Bytes that never change, of this tag."""
    return immutable_response(
        request,
        etag=f'"{tag}"',
        size=len(data),
        read=lambda offset, length: data[offset : offset + length],
        media_type=media,
    )


def files_of(kinds: Iterable[str], row: Mapping[str, Any]) -> list[str]:
    """Those of these kinds of files that a chain or complex has."""
    return [kind for kind in kinds if kind != "cif" or row["has_structure"]]


def kind_of(file: str, of: str, kinds: Iterable[str]) -> str:
    """Which of these kinds a file's name says, if it is a file of that id.

    Raises:
        Problem: 404.
    """
    kind = file.rpartition(".")[2]
    if kind not in kinds or file != f"{of}.{kind}":
        raise Problem(404, "not_found", "no such file", next=f"ask for {of} as {', '.join(kinds)}")
    return kind


def attachment(request: Request, tag: str, data: str | bytes, file: str) -> Response:
    """A file to keep, of this name."""
    plain = data.encode() if isinstance(data, str) else data
    answer = immutable(
        request, tag, plain, "application/octet-stream" if file.endswith(".npz") else "text/plain"
    )
    answer.headers["Content-Disposition"] = f'attachment; filename="{file}"'
    return answer


def require_structure(row: Mapping[str, Any], of: str) -> None:
    """Refuse what needs coordinates of a chain or complex that has none."""
    if not row["has_structure"]:
        what = f"{of} has no structure"
        raise Problem(404, "no_structure", what, next="choose one that has")

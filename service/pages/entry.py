"""One chain or one complex: sequences, alignments, distances and structure, and its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import pyarrow.compute as pc
from fastapi import Path
from starlette.responses import HTMLResponse, Response

from evofeed.protein import assembly_numbers as numbers
from evofeed.protein.chain_files import to_a3m, to_cif, to_fasta, to_npz
from evofeed.service.names import NAME_PATTERN, DatasetName, Digest
from evofeed.service.pages import pictures
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.edge import POLICY
from evofeed.service.requests.ranges import immutable_bytes
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.routes.rows import Either, digest_of
from evofeed.service.snapshots import rows
from evofeed.service.state import Service
from evofeed.viz import SCRIPTS, Model, Panel, alignment_bytes, alignment_html, structure_html

router = make_router("/ui/datasets/{name}/snapshots", tag="pages")
Table = Literal["chains", "assemblies"]
EntryId = Annotated[str, Path(pattern=NAME_PATTERN, description="id; case matters")]
_MAX_CELLS: Final = 256 << 20  # of what is unpacked for a page
_MOST: Final = 100  # rows of a table
_FILES: Final[dict[Table, dict[str, Callable[[Any], str | bytes]]]] = {
    "chains": {"fasta": to_fasta, "a3m": to_a3m, "cif": to_cif, "npz": to_npz},
    "assemblies": {"fasta": numbers.assembly_fasta, "cif": numbers.assembly_cif},
}
_STYLES: Final = "style-src 'self' 'unsafe-inline'"  # plotly.js and Mol* style what they draw
_SHOWN: Final = (
    POLICY.replace("style-src 'self'", _STYLES)
    # Mol* reads a table of its own that way, and compiles the help on its mouse bindings.
    .replace("connect-src 'self'", "connect-src 'self' data:")
    .replace("script-src 'self'", "script-src 'self' 'unsafe-eval'")
    .replace("img-src 'self'", "img-src 'self' data: blob:")
)


@router.get("/{snapshot}/{table}/{entry_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def entry_page(
    ctx: Context, name: DatasetName, snapshot: Either, table: Table, entry_id: EntryId
) -> HTMLResponse:
    """All there is to see of a chain or a complex."""
    digest = digest_of(ctx.service, name, snapshot)
    row, (before, after) = _row(ctx.service, name, digest, table, entry_id)
    record = _record(ctx.service, name, digest, table, row)
    address = f"/ui/datasets/{name}/snapshots/{digest}/{table}/{quote(entry_id, safe='')}"
    page = render(
        "entry.html",
        ctx.request,
        ctx.principal,
        dataset=name,
        digest=digest,
        table=table,
        entry=entry_id,
        row=row,
        record=record,
        before=before,
        after=after,
        scripts=SCRIPTS,
        files=[kind for kind in _FILES[table] if kind != "cif" or row["has_structure"]],
        config=ctx.service.catalog.snapshot(name, digest).manifest.config,
        **(_of_chain if table == "chains" else _of_complex)(record, address),
    )
    page.headers["Content-Security-Policy"] = _SHOWN
    return page


@router.get("/{digest}/chains/{entry_id}/alignment", include_in_schema=False)
@scope("read", heavy=True)
def entry_alignment(ctx: Context, name: DatasetName, digest: Digest, entry_id: EntryId) -> Response:
    """The rows of a chain's alignment, a letter a residue; the page asks for ranges of them."""
    row, _ = _row(ctx.service, name, digest, "chains", entry_id)
    data = alignment_bytes(_record(ctx.service, name, digest, "chains", row))
    return immutable_bytes(ctx.request, f"{digest[:32]}-{entry_id}-alignment", data, "text/plain")


@router.get("/{digest}/{table}/{entry_id}/files/{file}", include_in_schema=False)
@scope("read", heavy=True)
def entry_file(
    ctx: Context,
    name: DatasetName,
    digest: Digest,
    table: Table,
    entry_id: EntryId,
    file: Annotated[str, Path(max_length=200)],
) -> Response:
    """As a file for other programs: `ID.fasta`, `ID.cif`; of chains also `ID.a3m`, `ID.npz`."""
    kinds = _FILES[table]
    kind = file.rpartition(".")[2]
    if kind not in kinds or file != f"{entry_id}.{kind}":
        hint = f"ask for {entry_id} as {', '.join(kinds)}"
        raise Problem(404, "not_found", "no such file", next=hint)
    row, _ = _row(ctx.service, name, digest, table, entry_id)
    if kind == "cif" and not row["has_structure"]:
        what = f"{entry_id} has no structure"
        raise Problem(404, "no_structure", what, next="choose one that has")
    data = kinds[kind](_record(ctx.service, name, digest, table, row))
    plain = data.encode() if isinstance(data, str) else data
    media = "application/octet-stream" if kind == "npz" else "text/plain"
    answer = immutable_bytes(ctx.request, f"{digest[:32]}-{table}-{file}", plain, media)
    answer.headers["Content-Disposition"] = f'attachment; filename="{file}"'
    return answer


def _of_chain(record: Any, address: str) -> dict[str, Any]:
    there = record.all_atom_positions is not None
    return {
        "blocks": pictures.sequence_blocks(record),
        "alignment": alignment_html(record, url=f"{address}/alignment"),
        "identity": pictures.identity_histogram(record),
        "structure": _structure(record.chain_id, address) if there else "",
        "distances": pictures.chain_distances(record) if there else "",
        "templates": pictures.template_rows(record),
    }


def _of_complex(record: Any, address: str) -> dict[str, Any]:
    chains = numbers.chains_of(record)
    interfaces = numbers.interfaces_of(record, chains)
    there = record.all_atom_positions is not None
    return {
        "chains": chains[:_MOST],
        "names": [chain.name for chain in chains],
        "interfaces": interfaces[:_MOST],
        "more": (len(chains) - _MOST, len(interfaces) - _MOST),
        "entities": [
            (entity, chain, pictures.coverage_chart(chain), record.pairing[entity - 1])
            for entity, chain in enumerate(record.chains, 1)
        ],
        "species": numbers.paired_species(record),
        "structure": _structure(record.assembly_id, address) if there else "",
        "distances": pictures.complex_distances(record) if there else "",
    }


def _structure(entry_id: str, address: str) -> Panel:
    model = Model(name=entry_id, url=f"{address}/files/{quote(entry_id, safe='')}.cif")
    return structure_html([model], "structure")


def _row(
    service: Service, name: str, digest: str, table: Table, entry_id: str
) -> tuple[dict[str, Any], tuple[str | None, str | None]]:
    """A row of the index or of the table of complexes, and the ids before and after it."""
    if table == "chains":
        snapshot = service.catalog.snapshot(name, digest)
        every, at = snapshot.index, rows.row_of(snapshot, entry_id)
    else:
        every = service.catalog.assemblies(name, digest)
        at = pc.index(every["assembly_id"], entry_id).as_py()
    if at < 0:
        raise Problem(
            404,
            "not_found",
            f"no complex {entry_id[:80]!r} in this snapshot",
            next="ids are case-sensitive; look for it among the dataset's complexes",
        )
    found = every.slice(at, 1)
    described = found.select(rows.columns_of(found, None))
    return rows.rows_of(described)[0], rows.neighbours(every.column(0), at)


def _record(service: Service, name: str, digest: str, table: Table, row: dict[str, Any]) -> Any:
    read: Callable[[str, str, str], Any]
    if table == "chains":
        cells = row["num_res"] * (row["num_alignments"] + 37 * 13 * row["num_templates"])
        read, entry_id = service.catalog.record, row["chain_id"]
    else:
        cells, read, entry_id = row["cost"], service.catalog.assembly, row["assembly_id"]
    if cells > _MAX_CELLS:
        raise Problem(
            413,
            "entry_too_large",
            f"{entry_id} has {cells:,} cells, and a page takes {_MAX_CELLS:,}",
            next="read it with evofeed.store.Dataset.open",
        )
    return read(name, digest, entry_id)

"""One chain or one complex: sequences, alignments, distances and structure, and its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Path
from starlette.responses import HTMLResponse, Response

from evofeed.protein import assembly_numbers as numbers
from evofeed.protein import chain_files as files
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_numbers import (
    ca_trace,
    msa_coverage,
    runs,
    thinned,
)
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER, MSA_LETTERS
from evofeed.service.names import NAME_PATTERN, DatasetName, Digest
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.edge import POLICY
from evofeed.service.requests.ranges import immutable_bytes, immutable_response
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.routes.rows import Either, Table, digest_of
from evofeed.service.snapshots import rows
from evofeed.service.state import Service
from evofeed.viz import (
    FARTHEST,
    MOST_RESIDUES,
    SCRIPTS,
    Curve,
    Model,
    alignment_html,
    curves_html,
    histogram_html,
    map_html,
    structure_html,
)

router = make_router("/ui/datasets/{name}/snapshots", tag="pages")
EntryId = Annotated[str, Path(pattern=NAME_PATTERN, description="id; case matters")]
_MAX_CELLS: Final = 256 << 20  # of what is unpacked for a page
_FILES: Final[dict[Table, dict[str, Callable[[Any], str | bytes]]]] = {
    "chains": {
        "fasta": files.to_fasta, "a3m": files.to_a3m, "cif": files.to_cif, "npz": files.to_npz,
    },
    "assemblies": {"fasta": files.assembly_fasta, "cif": files.assembly_cif},
}  # fmt: skip
_STYLES: Final = "style-src 'self' 'unsafe-inline'"  # plotly.js and Mol* style what they draw
_IMAGES: Final = "img-src 'self' data: blob:"
_PLOTS: Final = POLICY.replace("style-src 'self'", _STYLES).replace("img-src 'self'", _IMAGES)
# Mol* reads a table of its own that way, and compiles the help on its mouse bindings.
_STRUCTURE: Final = _PLOTS.replace("connect-src 'self'", "connect-src 'self' data:").replace(
    "script-src 'self'", "script-src 'self' 'unsafe-eval'"
)


@router.get("/{snapshot}/{table}/{entry_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", heavy=True)
def entry_page(
    ctx: Context, name: DatasetName, snapshot: Either, table: Table, entry_id: EntryId
) -> HTMLResponse:
    """All there is to see of a chain or a complex."""
    digest = digest_of(ctx.service, name, snapshot)
    dataset, row, (before, after) = _page_parts(ctx.service, name, digest, table, entry_id)
    page = render(
        "entry.html", ctx.request, ctx.principal, dataset=name, digest=digest, table=table,
        entry=entry_id, row=row, record=dataset[entry_id], before=before, after=after,
        files=_files(table, row), config=ctx.service.catalog.snapshot(name, digest).manifest.config,
        show=_SHOWN, scripts=SCRIPTS,
    )  # fmt: skip
    page.headers["Content-Security-Policy"] = _STRUCTURE if row["has_structure"] else _PLOTS
    return page


@router.get("/{digest}/chains/{entry_id}/alignment", include_in_schema=False)
@scope("read", heavy=True)
def entry_alignment(ctx: Context, name: DatasetName, digest: Digest, entry_id: EntryId) -> Response:
    """The rows of a chain's alignment, a letter a residue; the page asks for ranges of them."""
    dataset, row, _ = _page_parts(ctx.service, name, digest, "chains", entry_id)
    columns = row["num_res"]

    def read(offset: int, length: int) -> bytes:
        first, stop = offset // columns, -(-(offset + length) // columns)
        (part,) = dataset.read([entry_id], ["msa"], rows=slice(first, stop))
        letters: bytes = MSA_LETTERS[part["msa"]].tobytes()
        return letters[offset - first * columns :][:length]

    size, tag = columns * row["num_alignments"], f"{digest[:32]}-{entry_id}-alignment"
    return immutable_response(ctx.request, tag, size, read, media_type="text/plain")


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
    dataset, row, _ = _page_parts(ctx.service, name, digest, table, entry_id)
    kinds, kind = _files(table, row), file.rpartition(".")[2]
    if kind not in kinds or file != f"{entry_id}.{kind}":
        hint = f"ask for {entry_id} as {', '.join(kinds)}"
        raise Problem(404, "not_found", "no such file", next=hint)
    data = kinds[kind](dataset[entry_id])
    plain = data.encode() if isinstance(data, str) else data
    media = "application/octet-stream" if kind == "npz" else "text/plain"
    answer = immutable_bytes(ctx.request, f"{digest[:32]}-{table}-{file}", plain, media)
    answer.headers["Content-Disposition"] = f'attachment; filename="{file}"'
    return answer


def identity_html(record: ChainRecord) -> str:
    """How alike the rows of an alignment are to the query."""
    edges = [round(i / _BINS, 2) for i in range(_BINS + 1)]
    counts = np.histogram(msa_coverage(record)[1][1:], edges)[0].tolist()
    return histogram_html("MSA rows by identity to the query", edges, counts, "of covered residues")


def coverage_html(record: ChainRecord) -> str:
    """How many rows cover each residue."""
    values = msa_coverage(record)[0].tolist()
    curve = Curve(name="sequences", steps=range(1, record.num_res + 1), values=values)
    title = "sequences that cover each residue"
    return curves_html(title, [curve], low=0.0, across="residue")


def model_html(name: str, url: str) -> str:
    """A structure to turn."""
    return structure_html([Model(name=name, url=url)], "structure")


def _files(table: Table, row: dict[str, Any]) -> dict[str, Callable[[Any], str | bytes]]:
    left_out = () if row["has_structure"] else ("cif",)
    return {kind: make for kind, make in _FILES[table].items() if kind not in left_out}


def _page_parts(
    service: Service, name: str, digest: str, table: Table, entry_id: str
) -> tuple[Any, dict[str, Any], tuple[str | None, str | None]]:
    """A dataset or its complexes, one's row in their table, and the ids before and after it."""
    dataset: Any = service.catalog.snapshot(name, digest)
    every = service.catalog.table(name, digest, table)
    ids, number = every.column(0), rows.row_of(every, entry_id)
    near = [ids[i].as_py() if 0 <= i < len(ids) else None for i in (number - 1, number + 1)]
    row = rows.rows_of(every.slice(number, 1).select(rows.columns_of(every, None)))[0]
    if table == "chains":
        cells = row["num_res"] * (row["num_alignments"] + 37 * 13 * row["num_templates"])
    else:
        cells, dataset = row["cost"], dataset.assemblies
    if cells > _MAX_CELLS:
        message = f"{entry_id} has {cells:,} cells, and a page takes {_MAX_CELLS:,}"
        hint = "read it with evofeed.store.Dataset.open"
        raise Problem(413, "entry_too_large", message, next=hint)
    return dataset, row, (near[0], near[1])


_LINE, _BLOCK = 60, 10  # residues of a line, and of a group in it
_BINS = 20


def sequence_blocks(record: ChainRecord) -> list[dict[str, Any]]:
    """The sequence in lines: number of the first residue, and groups of `(letters, resolved)`."""
    resolved = np.isfinite(ca_trace(record)[:, 0])
    if record.all_atom_positions is None:
        resolved[:] = True  # nothing to tell apart
    lines = []
    for start in range(0, record.num_res, _LINE):
        groups = []
        for first in range(start, min(start + _LINE, record.num_res), _BLOCK):
            last = min(first + _BLOCK, record.num_res)
            cuts = [
                first,
                *(i for i in range(first + 1, last) if resolved[i] != resolved[i - 1]),
                last,
            ]
            groups.append([(record.sequence[a:b], bool(resolved[a])) for a, b in pairwise(cuts)])
        lines.append({"first": start + 1, "groups": groups})
    return lines


def template_rows(record: ChainRecord) -> list[dict[str, Any]]:
    """Each template: name, date, score, share of residues it covers, and which."""
    return [
        {
            "name": _nth(record.template_domain_names, i),
            "released": _nth(record.template_release_date, i),
            "sum_probs": float(record.template_sum_probs[i]),
            "share": float(covered.mean()),
            "runs": runs(covered),
        }
        for i, covered in enumerate(record.template_all_atom_mask[:, :, ATOM_ORDER["CA"]] > 0)
    ]


def distances_html(record: ChainRecord | AssemblyRecord) -> str:
    """Distances between residues; those of a complex are named by chain and number."""
    names: Sequence[int | str] = range(1, record.num_res + 1)
    if isinstance(record, ChainRecord):
        record = AssemblyRecord.of_chain(record)
    else:
        members = record.members
        names = [f"{name} {i}" for chain, name in members for i in range(1, chain.num_res + 1)]
    distance = numbers.pseudo_beta_distances(record, MOST_RESIDUES)
    shown = [names[i] for i in thinned(np.arange(len(names)), MOST_RESIDUES)]
    title = "distances between residues (CB, of glycine CA)"
    if len(shown) < len(names):
        title += f", {len(shown)} of {len(names):,}"
    return map_html(title, distance, low=2.0, high=FARTHEST, unit="Å", residues=shown)


def _nth(values: tuple[str, ...], i: int) -> str:
    return values[i] if i < len(values) else ""


_SHOWN: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        alignment_html, coverage_html, distances_html, identity_html, model_html, sequence_blocks,
        template_rows, numbers.chains_of, numbers.interfaces_of, numbers.shared_species,
    )
}  # fmt: skip
"""The template's parts, computed when it reaches them."""

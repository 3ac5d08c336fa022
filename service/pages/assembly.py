"""One complex: its chains and interfaces, alignments and partners, structure, and its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import pyarrow.compute as pc
from fastapi import Path, Request
from pydantic import StringConstraints
from starlette.responses import HTMLResponse, Response

from evofeed import assembly_numbers as numbers
from evofeed.assembly_record import AssemblyRecord
from evofeed.drawing.structure_view import chain_colour, complex_view
from evofeed.service.names import NAME_PATTERN, DatasetName, Digest
from evofeed.service.pages import chain_pictures as pictures
from evofeed.service.pages.chain import (
    attachment,
    files_of,
    immutable,
    kind_of,
    require_structure,
)
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.statistics import digest_of
from evofeed.service.snapshots.chains import neighbours
from evofeed.service.state import Service

router = make_router("/ui/datasets/{name}/snapshots", tag="pages")
AssemblyId = Annotated[str, Path(pattern=NAME_PATTERN, description="id of a complex")]
Either = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Path(description="ref or digest")]
_MAX_COST: Final = 256 << 20  # cells of a complex that is unpacked for a page
_FILES: Final[dict[str, Callable[[AssemblyRecord], str]]] = {
    "fasta": numbers.assembly_fasta,
    "cif": numbers.assembly_cif,
}
_MOST: Final = 100  # rows of a table


@router.get(
    "/{snapshot}/assemblies/{assembly_id}", response_class=HTMLResponse, include_in_schema=False
)
@scope("read", heavy=True)
def assembly_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    snapshot: Either,
    assembly_id: AssemblyId,
) -> HTMLResponse:
    """All there is to see of a complex."""
    digest = digest_of(service, name, snapshot)
    row, (before, after) = _row(service, name, digest, assembly_id)
    record = _record(service, name, digest, row)
    chains = numbers.chains_of(record)
    interfaces = numbers.interfaces_of(record, chains)
    names = [chain.name for chain in chains]
    return render(
        "assembly.html",
        request,
        principal,
        dataset=name,
        digest=digest,
        row=row,
        record=record,
        before=before,
        after=after,
        chains=chains[:_MOST],
        names=names,
        colour=chain_colour,
        interfaces=interfaces[:_MOST],
        more=(len(chains) - _MOST, len(interfaces) - _MOST),
        entities=[
            (entity, chain, pictures.coverage_chart(chain), record.pairing[entity - 1])
            for entity, chain in enumerate(record.chains, 1)
        ],
        species=numbers.paired_species(record),
        structure=complex_view(
            numbers.assembly_ca(record), record.asym_id(), names, "structure, CA atoms"
        ),
        scales=pictures.SCALES,
        files=files_of(_FILES, row),
    )


@router.get("/{digest}/assemblies/{assembly_id}/distances.png", include_in_schema=False)
@scope("read", heavy=True)
def assembly_distances(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    assembly_id: AssemblyId,
) -> Response:
    """Distances and contacts over all chains of a complex, without axes."""
    row, _ = _row(service, name, digest, assembly_id)
    require_structure(row, assembly_id)
    record = _record(service, name, digest, row)
    data = pictures.complex_png(*numbers.assembly_distances(record, pictures.RESIDUES))
    return immutable(request, f"{digest[:32]}-{assembly_id}-complex", data, "image/png")


@router.get("/{digest}/assemblies/{assembly_id}/files/{file}", include_in_schema=False)
@scope("read", heavy=True)
def assembly_file(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    assembly_id: AssemblyId,
    file: Annotated[str, Path(max_length=200)],
) -> Response:
    """A complex as a file for other programs: `ID.fasta`, `ID.cif`."""
    kind = kind_of(file, assembly_id, _FILES)
    row, _ = _row(service, name, digest, assembly_id)
    if kind == "cif":
        require_structure(row, assembly_id)
    data = _FILES[kind](_record(service, name, digest, row))
    return attachment(request, f"{digest[:32]}-{file}-complex", data, file)


def _row(
    service: Service, name: str, digest: str, assembly_id: str
) -> tuple[dict[str, Any], tuple[str | None, str | None]]:
    """A complex's row of the table, and the ids before and after it."""
    table = service.catalog.assemblies(name, digest)
    ids = table["assembly_id"]
    at = pc.index(ids, assembly_id).as_py()
    if at < 0:
        raise Problem(
            404,
            "not_found",
            f"no complex {assembly_id[:80]!r} in this snapshot",
            next="ids are case-sensitive; look for it among the dataset's complexes",
        )
    return table.slice(at, 1).to_pylist()[0], neighbours(ids, at)


def _record(service: Service, name: str, digest: str, row: dict[str, Any]) -> AssemblyRecord:
    if row["cost"] > _MAX_COST:
        raise Problem(
            413,
            "assembly_too_large",
            f"{row['assembly_id']} has {row['cost']:,} cells, and a page takes {_MAX_COST:,}",
            next="read it with evofeed.store.Dataset.open(...).assemblies",
        )
    return service.catalog.assembly(name, digest, row["assembly_id"])

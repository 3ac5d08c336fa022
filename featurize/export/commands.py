"""`evofeed export`: records of a dataset as inputs of other programs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from evofeed.base.options import Json, count_bar


def export(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Folder, s3:// or service.")],
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder to write to.")],
    form: Annotated[
        str, typer.Option("--format", help="`af3`, `boltz`, `openfold`, `openfold3` or `protenix`.")
    ] = "af3",
    of: Annotated[
        list[str] | None,
        typer.Option(help="`chains`, `complexes` or `entries`; default: the largest kind."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Id of a chain, complex or entry. Repeatable.")
    ] = None,
    snapshot: Annotated[str, typer.Option(help="A ref or digest.")] = "main",
    as_json: Json = False,
) -> None:
    """Write chains, complexes and entries of a dataset as another program's inputs.

    Copies, paired rows, templates, ligands and modified residues are included; what the other
    program does not accept is listed. `structures/` has the known structures.

    Example: evofeed export data/ boltz_in/ --format boltz && boltz predict boltz_in/inputs
    """
    from evofeed.featurize.export.dataset import KINDS, export_dataset
    from evofeed.featurize.export.formats import FORMATS
    from evofeed.store import Dataset, address_and_ref

    if form not in FORMATS:
        raise typer.BadParameter(f"no format {form!r}: {', '.join(FORMATS)}")
    if unknown := sorted(set(of or ()) - set(KINDS)):
        raise typer.BadParameter(f"no {', '.join(unknown)}: {', '.join(KINDS)}")
    with (
        Dataset.open(*address_and_ref(dataset, snapshot)) as opened,
        count_bar("exporting", as_json, "jobs") as progress,
    ):
        jobs, left_out = export_dataset(
            opened, to, form, kinds=of or (), ids=only or (), progress=progress
        )
    if as_json:
        print(json.dumps({"jobs": jobs, "format": form, "folder": to, "left_out": left_out}))
        return
    print(f"{jobs} jobs in {to}")
    for name, reasons in left_out.items():
        typer.echo(f"left out of {name}: {'; '.join(dict.fromkeys(reasons))}", err=True)

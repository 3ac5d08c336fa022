"""`evofeed plot`: pictures of the chains of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from evofeed.base.options import Json, group, picture_name

plot = group(
    "Pictures of a dataset's chains.\n\nExample: evofeed plot msa data/ 1abc_A --out msa.png"
)

Uri = Annotated[str, typer.Argument(help="Path, s3:// or http(s):// of a dataset.")]
Chain = Annotated[str, typer.Argument(help="Chain id.")]
Out = Annotated[
    Path, typer.Option(help="Picture to write: .png, .svg or .pdf.", callback=picture_name)
]


@plot.command()
def msa(dataset: Uri, chain: Chain, out: Out, as_json: Json = False) -> None:
    """Alignment rows by identity to the query, and how many cover each residue.

    Example: evofeed plot msa data/ 1abc_A --out msa.png
    """
    from evofeed.store import Dataset
    from evofeed.viz import draw_msa_coverage

    _print_path(draw_msa_coverage(Dataset.open(dataset)[chain], out), as_json)


@plot.command()
def contacts(dataset: Uri, chain: Chain, out: Out, as_json: Json = False) -> None:
    """Distances between residues in the chain's structure.

    Example: evofeed plot contacts data/ 1abc_A --out contacts.png
    """
    from evofeed.base.errors import InputError
    from evofeed.store import Dataset
    from evofeed.viz import draw_distances

    record = Dataset.open(dataset)[chain]
    if record.all_atom_positions is None:
        raise InputError("has no structure to draw; choose a chain with one", item=chain)
    _print_path(draw_distances(record, out), as_json)


def _print_path(path: Path, as_json: bool) -> None:
    print(json.dumps({"picture": str(path)}) if as_json else path)

"""`evofeed entries`: whole assemblies with ligands and nucleic acids, for the all-atom models."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from evofeed.base.options import Json, group

if TYPE_CHECKING:
    from evofeed.featurize.job import JobReport

entries = group(
    "Whole entries for OpenFold3, Boltz and Protenix.\n\n"
    "Example: evofeed entries prepare mmcif/ data/ --components components.cif"
)


@entries.command()
def prepare(
    structures: Annotated[
        str,
        typer.Argument(
            metavar="MMCIF", help="Folder of mmCIF files, or a set that a project prepared."
        ),
    ],
    dataset_uri: Annotated[
        str, typer.Argument(metavar="DATASET", help="Dataset to write: a folder or s3://...")
    ],
    components: Annotated[str, typer.Option(help="The wwPDB's components.cif, or a part of it.")],
    alignments: Annotated[
        str, typer.Option(help="Folder with a folder of a3m or Stockholm files per query.")
    ] = "",
    templates: Annotated[
        str, typer.Option(help="Folder of mmCIF files for the template hits among the alignments.")
    ] = "",
    clusters: Annotated[str, typer.Option(help="One cluster a line, as 4HHB_1 2HHB_1.")] = "",
    project: Annotated[
        list[str] | None, typer.Option(help="openfold3, boltz, protenix; default all. Repeatable.")
    ] = None,
    conformers: Annotated[
        int, typer.Option(min=0, help="Per component; 0: 32 for OpenFold3, 1 for others.")
    ] = 0,
    executor: Annotated[str, typer.Option(help="`local` processes, `ray`, or `auto`.")] = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    ref: Annotated[str, typer.Option(help="Ref to point at the snapshot.")] = "main",
    max_broken: Annotated[
        float | None, typer.Option(min=0, max=1, help="Publish nothing if a larger share breaks.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make records of mmCIF files and publish them as the entries of a snapshot.

    If anything goes wrong, run it again: it continues, with the same result. Entries
    that are broken, or that no project accepts, are listed with the reason. Alignments are found by
    their first row: the canonical sequence of an entity. A set that OpenFold3, Boltz or Protenix
    prepared is an input as it is.

    Example: evofeed entries prepare mmcif/ data/ --components components.cif --alignments msa/
    """
    from evofeed.featurize.entries.input import EntriesInput
    from evofeed.featurize.entries.job import prepare_entries
    from evofeed.featurize.job.options import JobOptions

    source = EntriesInput(
        structures=structures,
        components=components,
        alignments=alignments,
        templates=templates,
        clusters=clusters,
        projects=tuple(project or ()),
        conformers=conformers or None,
    )
    options = JobOptions(executor=executor, workers=workers, ref=ref, max_broken=max_broken)
    run_entries(partial(prepare_entries, source, dataset_uri, options=options), as_json)


def run_entries(prepare: Callable[..., JobReport], as_json: bool) -> NoReturn:
    """Runs a job of entries with a progress bar, prints how it ended and exits with its code."""
    from evofeed.featurize.job.show import interruptible, job_bar

    with interruptible(), job_bar(as_json, "preparing entries", "items") as show:
        report = prepare(progress=show)
    print(json.dumps(report.to_dict()) if as_json else "\n".join(_lines(report)))
    raise typer.Exit(report.exit_code)


def _lines(report: JobReport) -> list[str]:
    done = f"{report.num_good} of {report.num_chains} files, {report.num_bytes / 1e6:,.1f} MB"
    head = f"published {report.snapshot[:12]}: {done}" if report.snapshot else report.message
    broken = [f"  left out {item['chain_id']}: {item['message']}" for item in report.broken]
    broken += [f"  {report.message}"] if report.snapshot and report.message else []
    return [head, *broken, f"  all that was left out, and why: {report.path}"]


@entries.command()
def ls(
    dataset_uri: Annotated[str, typer.Argument(metavar="DATASET")],
    snapshot: Annotated[str, typer.Option(help="Ref or digest.")] = "main",
    as_json: Json = False,
) -> None:
    """List the entries of a snapshot.

    Example: evofeed entries ls data/
    """
    from evofeed.store import Dataset, address_and_ref

    rows = Dataset.open(*address_and_ref(dataset_uri, snapshot)).entries.table.to_pylist()
    if as_json:
        print(json.dumps(rows))
        return
    if not rows:
        print(f"no entries in {dataset_uri}: `evofeed entries prepare` makes them")
    for row in rows:
        tokens = ", ".join(
            f"{name.removeprefix('tokens_')} {value}"
            for name, value in row.items()
            if name.startswith("tokens_") and value >= 0
        )
        print(f"{row['entry_id']}  {row['num_atoms']} atoms; tokens: {tokens}")

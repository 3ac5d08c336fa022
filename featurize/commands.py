"""`evofeed featurize`: raw files to a published snapshot of a shard dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.counts import counted
from evofeed.base.options import Json, count_bar, tracked

if TYPE_CHECKING:
    from evofeed.featurize.check import CheckReport

_Clusters = Annotated[str, typer.Option(help="Clusters, one a line, or mmseqs' _cluster.tsv.")]
_Structures = Annotated[str, typer.Option(help="Folder of mmCIF or PDB files.")]
_Templates = Annotated[str, typer.Option(help="Folder of template mmCIF files.")]
_Distillation = Annotated[bool, typer.Option("--distillation", help="Structures are predictions.")]
_Stage = Annotated[
    str, typer.Option(help="Folder for the copy of an s3:// INPUT; default ~/.cache/evofeed.")
]


def featurize(
    input_uri: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="Folder of raw files, a FASTA, an alignment_db index, or s3://..."
        ),
    ],
    dataset_uri: Annotated[
        str,
        typer.Argument(
            metavar="DATASET", help="Dataset to write: a folder, s3://..., a service's dataset."
        ),
    ],
    executor: Annotated[
        str, typer.Option(help="`local` processes, `ray`, or `auto`: ray if there is a cluster.")
    ] = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    preset: Annotated[str, typer.Option(help="`default` (AF2's safe rules) or `openfold`.")] = (
        "default"
    ),
    ref: Annotated[str, typer.Option(help="Ref to point at the snapshot.")] = "main",
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop the ref's chains of other inputs.")
    ] = False,
    ray_address: Annotated[
        str, typer.Option(help="host:port of this machine's Ray cluster; default $RAY_ADDRESS.")
    ] = "",
    ledger: Annotated[str, typer.Option(help="Path or SQLAlchemy URL of the job ledger.")] = "",
    stage: _Stage = "",
    clusters: _Clusters = "",
    structures: _Structures = "",
    templates: _Templates = "",
    search_db: Annotated[
        list[str] | None,
        typer.Option(help="Database to search, [NAME=]PATH; INPUT is then FASTA. Repeatable."),
    ] = None,
    template_db: Annotated[str, typer.Option(help="pdb_seqres FASTA or PDB70 prefix.")] = "",
    recipe: Annotated[str, typer.Option(help="Search recipe, see `evofeed search`.")] = "default",
    distillation: _Distillation = False,
    max_template_date: Annotated[str, typer.Option(help="Latest, an ISO date.")] = "2021-10-10",
    max_msa_rows: Annotated[int, typer.Option(min=0, help="Rows per chain; 0: all.")] = 0,
    msa_budget: Annotated[
        float, typer.Option(min=0, help="Rows x residues per chain, e.g. 5e7; 0 keeps all.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="For choosing rows.")] = 0,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds per chain, at most.")] = 600,
    memory: Annotated[int, typer.Option(min=1, help="MiB per chain, at most.")] = 8192,
    max_broken: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Publish nothing if a larger share is broken; by default 0.05 from 20 chains on.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Featurize every chain of INPUT and publish them as a snapshot of DATASET.

    If anything goes wrong, run it again: it continues, and the result is the
    same. Exit code 0: published. 1: nothing published; the message says why. 2: wrong call.
    Broken chains up to --max-broken are listed, not fatal. `evofeed check` checks an input first.

    With --search-db, INPUT is a FASTA file or a folder of them: the sequences are searched
    first, as `evofeed search` does, and the alignments are kept in INPUT.search/ next to it.

    Example: evofeed featurize raw/ data/ --ray-address 10.0.0.1:6379

    Example: evofeed featurize proteins.fasta data/ --search-db uniref.fasta
    """
    from evofeed.base.errors import InputError

    if template_db and not search_db:
        raise typer.BadParameter("--template-db needs --search-db too")
    if "://" not in input_uri and not Path(input_uri).exists():
        raise InputError("no such file or folder", path=input_uri)  # before anything is imported
    from evofeed.featurize.config import CropConfig, FeaturizeConfig
    from evofeed.featurize.inputs.stage import is_remote
    from evofeed.featurize.job.options import JobOptions

    if preset not in ("default", "openfold"):
        raise typer.BadParameter(f"no preset {preset!r}: default or openfold")
    make_config = FeaturizeConfig.openfold if preset == "openfold" else FeaturizeConfig
    discover_args = _discover_args(structures, templates, distillation)
    config = make_config(max_template_date=max_template_date)
    crop = CropConfig(max_msa_rows=max_msa_rows or None, msa_budget=msa_budget or None, seed=seed)
    options = JobOptions(
        executor=executor,
        workers=workers,
        ray_address=ray_address,
        ledger=ledger,
        ref=ref,
        replace_ref=replace,
        clusters=clusters,
        deadline=deadline,
        memory=memory << 20,
        max_broken=max_broken,
    )
    if is_remote(input_uri):
        input_uri = _stage(input_uri, stage, as_json)
    if search_db:
        from evofeed.featurize.search.commands import search_first

        input_uri = search_first(input_uri, recipe, search_db, template_db, options, as_json)
    from evofeed.featurize.job.show import run_and_show

    report = run_and_show(
        input_uri,
        dataset_uri,
        as_json,
        config=config,
        crop=crop if crop != CropConfig() else None,
        options=options,
        discover_args=discover_args,
    )
    raise typer.Exit(report.exit_code)


def _stage(uri: str, folder: str, quiet: bool) -> str:
    """Copies an input from its bucket; returns the path of the copy."""
    from evofeed.featurize.inputs.stage import stage_input

    folder = folder or str(Path.home() / ".cache" / "evofeed" / "inputs" / uri.partition("://")[2])
    with count_bar(f"copying {uri}", quiet, "MB", 1e6) as progress:
        return stage_input(uri, folder, progress=progress)


def _discover_args(structures: str, templates: str, distillation: bool) -> dict[str, Any]:
    args = {
        "structure_dir": structures,
        "template_mmcif_dir": templates,
        "is_distillation": distillation,
    }
    return {name: value for name, value in args.items() if value}


def check(
    input_uri: Annotated[
        str, typer.Argument(metavar="INPUT", help="Same as for `evofeed featurize`.")
    ],
    clusters: _Clusters = "",
    structures: _Structures = "",
    templates: _Templates = "",
    distillation: _Distillation = False,
    stage: _Stage = "",
    components: Annotated[
        str, typer.Option(help="components.cif: also count what all-atom rules leave out.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Check an input and report what a job would find and leave out; writes nothing.

    Structures are read in full, but only the query of an alignment: a row of another length is
    an error of the job. Exit code 1 if there are errors.

    Example: evofeed check raw/
    """
    from evofeed.featurize.check import check_input
    from evofeed.featurize.inputs.stage import is_remote

    if is_remote(input_uri):
        input_uri = _stage(input_uri, stage, as_json)
    discover_args = _discover_args(structures, templates, distillation)
    with count_bar("checking", as_json, "chains") as progress:
        report = check_input(input_uri, clusters=clusters, progress=progress, **discover_args)
    if components:
        from evofeed.featurize.entries.input import structure_files
        from evofeed.featurize.entries.prepare import count_left_out

        files = structure_files(structures or input_uri)
        read = tracked(files, len(files), "reading entries", as_json, "files")
        report.rulesets = count_left_out(read, components)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _show_check(report)
    raise typer.Exit(0 if report.ok else 1)


def _show_check(report: CheckReport) -> None:
    """Prints a check as a table, with the first examples of each finding below its line."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(
        f"{counted(report.chains, 'chain')}, {report.with_structure} with structure, "
        f"{report.with_alignments} with alignments, {report.input_bytes / 1e6:.1f} MB",
        highlight=False,
    )
    for finding in report.sorted_findings():
        colour = {"error": "red", "warning": "yellow"}.get(finding.severity, "cyan")
        head = f"[{colour}]{finding.severity}[/{colour}] {finding.count} x {escape(finding.kind)}"
        console.print(f"{head}: {escape(finding.advice)}", highlight=False, soft_wrap=True)
        for example in finding.examples:
            console.print(f"    {escape(example)}", highlight=False, soft_wrap=True)
    for project, counts in report.rulesets.items():
        taken = counted(counts["entry"], "entry", "entries")
        console.print(f"{project} takes {taken}", highlight=False)
        for reason, count in sorted(counts.items(), key=lambda item: -item[1]):
            if reason != "entry":
                console.print(f"    {count} x {escape(reason)}", highlight=False, soft_wrap=True)
    if report.ok:
        console.print("nothing is in the way", style="green")

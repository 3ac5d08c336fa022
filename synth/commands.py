"""`evofeed synth`: a raw dataset of simulated protein families."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from evofeed.base.options import Json


def synth(
    out: Annotated[Path, typer.Argument(help="Folder to write; made if missing.")],
    chains: Annotated[int, typer.Option(min=1, help="Chains to simulate.")] = 64,
    complexes: Annotated[
        int, typer.Option(min=0, help="Complexes to simulate, in place of chains.")
    ] = 0,
    stoichiometry: Annotated[
        list[str] | None, typer.Option(help="Of complexes, in turn [A2, AB, A2B2, A3].")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    broken: Annotated[float, typer.Option(min=0, max=1, help="Fraction to damage.")] = 0.0,
    mean_length: Annotated[int, typer.Option(min=30, help="Residues of a typical chain.")] = 100,
    mean_depth: Annotated[int, typer.Option(min=16, help="Homologs of a typical family.")] = 120,
    mean_members: Annotated[
        int, typer.Option(min=1, help="Chains with a structure in a typical family.")
    ] = 6,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes, the same bytes; 0: one per core.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Write a synthetic raw dataset in the OpenProteinSet layout.

    Example: evofeed synth raw/ --chains 64 --seed 1

    Complexes: evofeed synth raw/ --complexes 40 --stoichiometry A2B2 --stoichiometry AB
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from evofeed.synth.complexes import STOICHIOMETRIES
    from evofeed.synth.write import write_synthetic

    if stoichiometry and not complexes:
        raise typer.BadParameter("a stoichiometry is of complexes: give --complexes N")
    if (out / "alignments").exists():
        raise typer.BadParameter(f"{out} already holds alignments; choose an empty folder")
    columns = ("simulating", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    quiet = as_json or not console.is_terminal
    count = complexes or chains
    with Progress(*columns, console=console, disable=quiet, transient=True) as bar:
        task = bar.add_task("complexes" if complexes else "chains", total=count)
        report = write_synthetic(
            out,
            count,
            seed,
            broken=broken,
            mean_length=mean_length,
            mean_depth=mean_depth,
            mean_members=mean_members,
            stoichiometries=(stoichiometry or STOICHIOMETRIES) if complexes else (),
            workers=workers or len(os.sched_getaffinity(0)),
            progress=lambda done: bar.advance(task, done),
        )
    if as_json:
        print(json.dumps(report.to_dict()))
        return
    first = f"{report.num_complexes} complexes, " if complexes else ""
    print(
        f"{first}{report.num_chains} chains in {report.num_families} families, "
        f"{report.num_bytes / 1e6:.1f} MB in {report.out_dir}"
    )
    if report.broken:
        print(f"{len(report.broken)} damaged on purpose, listed in {out / 'broken.json'}")
    print(f"next: evofeed featurize {out} DATASET")
    if complexes:
        print(f"then: evofeed assemblies {out} DATASET")

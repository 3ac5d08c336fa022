"""`evofeed demo`: the command, its progress and its report on the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from evofeed.base.options import Json


def demo(
    raw: Annotated[
        Path | None,
        typer.Option("--input", help="Raw files to start from: alignments/ and mmcif/ below it."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Output folder; default demo or demo_complexes."),
    ] = None,
    chains: Annotated[int, typer.Option(min=4, help="Chains to simulate without --input.")] = 24,
    steps: Annotated[
        int | None, typer.Option(min=16, help="Training steps [120; complexes: 240].")
    ] = None,
    complexes: Annotated[
        bool, typer.Option("--complexes", help="Simulate complexes; overfit one.")
    ] = False,
    all_atom: Annotated[
        bool, typer.Option("--all-atom", help="Entries with ligands; batches of three models.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the whole path: files, shards, service, batches, some training steps, a report.

    Without --input it simulates protein families first. It leaves no process running.

    Example: evofeed demo --input my_alignments --steps 200

    Complexes: evofeed demo --complexes

    Whole entries: evofeed demo --all-atom
    """
    from evofeed.demo import complexes as of_complexes
    from evofeed.demo import entries as of_entries
    from evofeed.demo import path as of_chains

    if all_atom and (raw is not None or complexes):
        raise typer.BadParameter("--all-atom simulates its own files, and no complexes")
    if raw is not None and complexes:
        raise typer.BadParameter("--complexes simulates its own files")
    if raw is not None and not raw.is_dir():
        raise typer.BadParameter(f"{raw} is not a folder", param_hint="--input")
    say = None if as_json else _heading
    out = folder or Path("demo_entries" if all_atom else "demo_complexes" if complexes else "demo")
    if all_atom:
        report, rows = of_entries.run_entries(out, say=say), of_entries.rows
    elif complexes:
        report = of_complexes.run_complexes(out, steps=steps or 240, say=say)
        rows = of_complexes.rows
    else:
        report = of_chains.run_demo(out, raw=raw, chains=chains, steps=steps or 120, say=say)
        rows = of_chains.rows
    if as_json:
        print(json.dumps(report, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title="evofeed demo")
    table.add_column()
    table.add_column(overflow="fold")  # a truncated path would be useless
    for label, text in rows(report):
        table.add_row(label, text)
    Console(markup=False).print(table)
    if all_atom:
        print(f"look around:  evofeed entries ls {out / 'dataset'}")
        return
    print(f"look around:  evofeed snapshots chains {out / 'dataset'}")
    print(f"              evofeed serve --dataset demo={out / 'dataset'}")
    print(f"              evofeed report {out / 'training'}")


def _heading(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).rule(text, align="left")

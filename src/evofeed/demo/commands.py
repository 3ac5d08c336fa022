"""`evofeed demo`: the whole path, watched from the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.base.options import Json


def demo(
    raw: Annotated[
        Path | None,
        typer.Option("--input", help="Raw files to start from: alignments/ and mmcif/ below it."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="For everything it makes, else demo or demo_complexes."),
    ] = None,
    chains: Annotated[int, typer.Option(min=4, help="Chains to simulate without --input.")] = 24,
    steps: Annotated[
        int | None, typer.Option(min=16, help="Training steps [120; of complexes 240].")
    ] = None,
    complexes: Annotated[
        bool, typer.Option("--complexes", help="Simulate complexes; learn one by heart.")
    ] = False,
    all_atom: Annotated[
        bool, typer.Option("--all-atom", help="Entries with ligands; batches of three models.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The whole path: files, shards, service, batches, some training steps, a report.

    Without --input it simulates protein families first. Nothing is left running.

    Example: evofeed demo --input my_alignments --steps 200

    Complexes: evofeed demo --complexes

    Whole entries: evofeed demo --all-atom
    """
    from evofeed.demo.complexes import run_complexes
    from evofeed.demo.entries import run_entries
    from evofeed.demo.path import run_demo

    if all_atom and (raw is not None or complexes):
        raise typer.BadParameter("--all-atom simulates its own files, and no complexes")
    if raw is not None and complexes:
        raise typer.BadParameter("of complexes the demo simulates its own files")
    if raw is not None and not raw.is_dir():
        raise typer.BadParameter(f"{raw} is no folder", param_hint="--input")
    kind = "demo_entries" if all_atom else "demo_complexes" if complexes else "demo"
    out = folder or Path(kind)
    say = None if as_json else _heading
    report: Any = (
        run_entries(out, say=say)
        if all_atom
        else run_complexes(out, steps=steps or 240, say=say)
        if complexes
        else run_demo(out, raw=raw, chains=chains, steps=steps or 120, say=say)
    )
    if as_json:
        print(report.to_json())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title="evofeed demo")
    for label, text in report.rows():
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

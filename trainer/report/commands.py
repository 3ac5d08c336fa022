"""`evofeed report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.options import picture_name


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, the --out of `evofeed train`.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.", callback=picture_name)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Where every second of a training run went, its losses and its validations.

    Example:  evofeed report runs/first --plot report.png
    """
    from evofeed.trainer.report.run_report import make_report, write_report

    try:
        found = write_report(run)
    except OSError:  # somebody else's run: its report can be read, not kept
        found = make_report(run)
    if plot is not None:
        from evofeed.trainer.report.plot import plot_report

        plot_report(run, plot)
    show_report(found, as_json)


def show_report(report: dict[str, Any], as_json: bool) -> None:
    """Print a report as a table, or as JSON."""
    if as_json:
        print(json.dumps(report, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    from evofeed.trainer.report.run_report import report_rows

    table = Table(show_header=False, title="run report")
    for label, text in report_rows(report):
        table.add_row(label, text)
    Console().print(table)

"""`evofeed report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.base.options import Json


def _page_name(path: Path | None) -> Path | None:
    """Path of the page; its folder must exist."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} for {path.name}")
    return path


def report(
    run: Annotated[
        list[Path],
        typer.Argument(help="Folder of a run, its --out; several only with --html."),
    ],
    html: Annotated[
        Path | None,
        typer.Option(help="Write an offline page for a browser.", callback=_page_name),
    ] = None,
    as_json: Json = False,
) -> None:
    """Report where the time of a training run went, its losses and its validations.

    Example:  evofeed report runs/first --html report.html

    Example:  evofeed report runs/first runs/second --html both.html
    """
    from evofeed.trainer.report.run_report import make_report, write_report

    if len(run) > 1 and (html is None or as_json):
        raise typer.BadParameter("several runs are compared on a page: give --html without --json")
    if html is not None:
        from evofeed.trainer.report.page import write_page

        write_page(run, html)
    if len(run) > 1:
        print(html)
        return
    try:
        shown = write_report(run[0])
    except OSError:  # another user's run: its report can be shown, but not written
        shown = make_report(run[0])
    show_report(shown, as_json)


def show_report(report: dict[str, Any], as_json: bool) -> None:
    """Prints a report as a table, or as JSON."""
    if as_json:
        print(json.dumps(report, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    from evofeed.trainer.report.run_report import report_rows

    table = Table(show_header=False, title="run report")
    for label, text in report_rows(report):
        table.add_row(label, text)
    Console(markup=False).print(table)

"""Command groups, options and their checks for the commands of several rooms."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer

from evofeed.base.counts import ReportDone

_T = TypeVar("_T")
_REFRESH_SECONDS = 0.1

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def group(text: str, **options: Any) -> typer.Typer:
    """A group of commands, which prints its help if none is named."""
    frame: dict[str, Any] = {"no_args_is_help": True, "add_completion": False}
    return typer.Typer(**frame, pretty_exceptions_enable=False, help=text, **options)


@contextmanager
def share_bar(title: str, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """A bar with time left on a terminal's stderr; yields a function of the share and a text."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    text = TextColumn("{task.fields[text]}")
    columns = (title, BarColumn(), TaskProgressColumn(), text, "ETA", TimeRemainingColumn())
    # No refresh thread: a process with threads cannot fork its workers.
    with Progress(
        *columns,
        console=console,
        auto_refresh=False,
        speed_estimate_period=3600.0,  # a step may take minutes
        disable=quiet or not console.is_terminal,
    ) as bar:
        task, shown_at = bar.add_task(title, total=1.0, text="starting"), 0.0

        def show(share: float, text: str) -> None:
            nonlocal shown_at
            if share >= 1 or time.monotonic() - shown_at > _REFRESH_SECONDS:
                shown_at = time.monotonic()
                if share < bar.tasks[0].completed:  # the next stage of the work
                    bar.reset(task)
                bar.update(task, completed=share, text=text, refresh=True)

        yield show


@contextmanager
def count_bar(title: str, quiet: bool, unit: str, size: float = 1) -> Iterator[ReportDone]:
    """A `share_bar` for counts; it shows them in units of `size`."""
    with share_bar(title, quiet) as show:
        yield lambda done, total: show(
            done / max(total, 1), f"{done / size:,.0f} of {total / size:,.0f} {unit}"
        )


def tracked(items: Iterable[_T], total: int, title: str, quiet: bool, unit: str) -> Iterator[_T]:
    """The items of an iterable, with a `count_bar` of how many were taken."""
    with count_bar(title, quiet, unit) as progress:
        for number, item in enumerate(items, 1):
            yield item
            progress(number, total)


def usable_device(name: str | None) -> str | None:
    """A `--device` on which torch can create a tensor; empty or None chooses one later."""
    if name:
        import torch

        local = os.environ.get("LOCAL_RANK")  # of torchrun: no rank needs memory on another's GPU
        try:
            torch.empty(0, device=f"cuda:{local}" if name == "cuda" and local else name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise typer.BadParameter(f"{name!r} cannot be used here: {reason}") from None
    return name


Device = Annotated[
    str, typer.Option(help="cpu or cuda; default: a GPU if there is one.", callback=usable_device)
]

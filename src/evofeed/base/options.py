"""Command groups, options and their checks for the commands of several rooms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def group(text: str, **options: Any) -> typer.Typer:
    """A group of commands, which prints its help if none is named."""
    frame: dict[str, Any] = {"no_args_is_help": True, "add_completion": False}
    return typer.Typer(**frame, pretty_exceptions_enable=False, help=text, **options)


@contextmanager
def share_bar(title: str, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on a terminal's stderr; yields a function that sets the share and a text."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (title, BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    quiet = quiet or not console.is_terminal
    # No refresh thread: a process with threads cannot fork its workers.
    with Progress(*columns, console=console, auto_refresh=False, disable=quiet) as bar:
        task = bar.add_task(title, total=1.0, text="starting")

        def show(share: float, text: str) -> None:
            bar.update(task, completed=share, text=text)
            bar.refresh()

        yield show


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

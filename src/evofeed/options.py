"""What commands of several rooms share: groups, options and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def group(text: str) -> typer.Typer:
    """A command of several commands, which prints `text` without one."""
    return typer.Typer(
        no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=text
    )


def usable_device(name: str | None) -> str | None:
    """A `--device` on which torch can really make a tensor here; empty or None chooses later."""
    if name:
        import torch

        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise typer.BadParameter(f"{name!r} cannot be used here: {reason}") from None
    return name


def picture_name(path: Path | None) -> Path | None:
    """A picture's file name, by whose ending matplotlib chooses the format."""
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path.name!r} must end in .png, .svg or .pdf")
    return path

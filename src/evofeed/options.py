"""Checks of options that commands of several rooms take."""

from __future__ import annotations

from pathlib import Path

import typer


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

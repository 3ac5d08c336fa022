"""Options that commands of the store share, and how they print."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Uri = Annotated[str, typer.Argument(metavar="DATASET", help="Folder, s3:// or http:// address.")]
RefName = Annotated[str, typer.Option(help="Ref, or digest, of which 8 digits do.")]
Moved = Annotated[str, typer.Option(help="The ref that is read and then moved.")]


class Commands(TyperGroup):
    """Commands of which a wrong argument is exit code 2 and one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except (ValueError, KeyError) as error:
            typer.echo(f"evofeed: {error.args[0] if error.args else error}", err=True)
            raise typer.Exit(2) from None


def show(as_json: bool, values: Any, lines: list[str]) -> None:
    """Print values for machines, or lines for people."""
    typer.echo(json.dumps(values, indent=2) if as_json else "\n".join(lines))

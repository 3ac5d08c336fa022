"""`evofeed tokens`: straight to the database, so that the first token can be made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from evofeed.options import Json, group

if TYPE_CHECKING:
    from evofeed.service.database.database import Database

tokens = group("API tokens of the service. Example: evofeed tokens create trainer --scope read")


@tokens.command()
def create(
    label: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, publish, jobs or admin; repeatable.")],
    dataset: Annotated[
        list[str] | None, typer.Option(help="For this dataset only; repeatable.")
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(help="It may name places below this one only; repeatable."),
    ] = None,
    days: Annotated[float, typer.Option(min=0, help="Days until it expires; 0: never.")] = 90,
    max_jobs: Annotated[
        int | None, typer.Option(min=0, help="Jobs that may wait or run at once.")
    ] = None,
    max_chains: Annotated[
        int | None, typer.Option(min=0, help="Chains its jobs may have within a day.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="Bytes it may upload within a day.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once.

    Example: evofeed tokens create trainer --scope read --dataset pdb --days 30
    """
    from evofeed.service.access.auth import SCOPES, create_token
    from evofeed.service.access.places import canonical_place
    from evofeed.service.access.quotas import Quotas

    if wrong := [name for name in scope if name not in SCOPES]:
        raise typer.BadParameter(
            f"{wrong[0]!r} is none of {', '.join(SCOPES)}", param_hint="--scope"
        )
    with _database() as database:
        token_id, text = create_token(
            database,
            label=label,
            scopes=scope,
            datasets=dataset,
            roots=[canonical_place(uri) for uri in root] if root else None,
            seconds=days * 86_400 if days else None,
            quotas=Quotas(max_jobs, max_chains, max_bytes),
        )
    typer.echo(json.dumps({"id": token_id, "token": text}) if as_json else text)


@tokens.command("ls")
def ls(as_json: Json = False) -> None:
    """List tokens, without their secrets.

    Example: evofeed tokens ls
    """
    from sqlalchemy import select

    from evofeed.service.clock import iso_or_none
    from evofeed.service.database.tables import TokenRow

    with _database() as database, database.read() as session:
        rows = list(session.scalars(select(TokenRow).order_by(TokenRow.created_at)))
    for row in rows:
        values = {
            "id": row.id,
            "label": row.label,
            "scopes": row.scopes,
            "datasets": row.datasets,
            "expires_at": iso_or_none(row.expires_at),
            "revoked_at": iso_or_none(row.revoked_at),
        }
        if as_json:
            typer.echo(json.dumps(values))
        else:
            state = "revoked" if row.revoked_at else f"until {values['expires_at'] or 'revoked'}"
            scopes, datasets = ",".join(row.scopes), ",".join(row.datasets or ["all"])
            typer.echo(f"{row.id}  {scopes:<24} {datasets:<20} {state:<32} {row.label}")


@tokens.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Its id, the 16 digits behind evf_.")],
    as_json: Json = False,
) -> None:
    """Make a token worthless from now on.

    Example: evofeed tokens revoke 0123456789abcdef
    """
    from evofeed.service.access.auth import revoke_token

    with _database() as database:
        revoke_token(database, token_id)
    typer.echo(json.dumps({"revoked": token_id}) if as_json else f"revoked {token_id}")


@contextmanager
def _database() -> Iterator[Database]:
    from evofeed.service.database.database import Database
    from evofeed.service.settings import load_settings

    database = Database(load_settings().url)
    try:
        if database.is_sqlite:
            database.upgrade()
        else:
            database.require_current()
        yield database
    finally:
        database.close()

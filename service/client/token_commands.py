"""`evofeed tokens`: straight to the database, so that the first token can be made, or by URL."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.options import Json, group

if TYPE_CHECKING:
    from evofeed.service.client.client import Client
    from evofeed.service.database.database import Database

tokens = group("API tokens of the service. Example: evofeed tokens create trainer --scope read")
Url = Annotated[
    str, typer.Argument(metavar="[URL]", help="http://HOST:PORT; without: this machine's database.")
]


@tokens.command()
def create(
    label: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, publish, jobs or admin; repeatable.")],
    url: Url = "",
    dataset: Annotated[
        list[str] | None, typer.Option(help="For this dataset only; repeatable.")
    ] = None,
    root: Annotated[
        list[str] | None, typer.Option(help="It may name places below this one only; repeatable.")
    ] = None,
    days: Annotated[float, typer.Option(min=0, help="Days until it expires; 0: never.")] = 90,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once.

    Example: evofeed tokens create trainer --scope read --dataset pdb --days 30
    """
    from evofeed.service.access.auth import SCOPES

    if wrong := [name for name in scope if name not in SCOPES]:
        raise typer.BadParameter(
            f"{wrong[0]!r} is none of {', '.join(SCOPES)}", param_hint="--scope"
        )
    seconds = days * 86_400 if days else None
    with _service(url) as service:
        token_id, text = service.create_token(
            label, scope, datasets=dataset, roots=root, seconds=seconds
        )
    typer.echo(json.dumps({"id": token_id, "token": text}) if as_json else text)


@tokens.command("ls")
def ls(url: Url = "", as_json: Json = False) -> None:
    """List tokens, without their secrets.

    Example: evofeed tokens ls
    """
    with _service(url) as service:
        for token in service.tokens():
            until = "revoked" if token.revoked_at else f"until {token.expires_at or 'revoked'}"
            scopes, datasets = ",".join(token.scopes), ",".join(token.datasets or ["all"])
            line = f"{token.id}  {scopes:<24} {datasets:<20} {until:<32} {token.label}"
            typer.echo(json.dumps(dataclasses.asdict(token)) if as_json else line)


@tokens.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Its id, the 16 digits behind evf_.")],
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Make a token worthless from now on.

    Example: evofeed tokens revoke 0123456789abcdef
    """
    with _service(url) as service:
        service.revoke_token(token_id)
    typer.echo(json.dumps({"revoked": token_id}) if as_json else f"revoked {token_id}")


class _Here:
    """What `Client` does with tokens, on this machine's database."""

    def __init__(self, database: Database) -> None:
        from evofeed.service.access import auth

        self.tokens = partial(auth.tokens_after, database)
        self.revoke_token = partial(auth.revoke_token, database)
        self._create = partial(auth.create_token, database)

    def create_token(
        self, label: str, scopes: Sequence[str], *, roots: Sequence[str] | None, **options: Any
    ) -> tuple[str, str]:
        from evofeed.service.access.places import canonical_root

        places = None if roots is None else [canonical_root(root) for root in roots]
        return self._create(label=label, scopes=scopes, roots=places, **options)


@contextmanager
def _service(url: str) -> Iterator[Client | _Here]:
    if url:
        from evofeed.service.client.client import Client

        with Client(url) as client:
            yield client
        return
    from evofeed.service.database.database import Database
    from evofeed.service.settings import load_settings

    with Database(load_settings().url) as database:
        database.make_current()
        yield _Here(database)

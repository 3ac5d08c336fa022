"""`evofeed serve`."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.errors import InputError
from evofeed.base.options import Json

if TYPE_CHECKING:
    from evofeed.service.settings import ServiceSettings


def serve(
    dataset: Annotated[
        list[str] | None, typer.Option(help="NAME=URI, repeatable: a dataset to serve.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address; default 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; default 8461; 0 picks a free one.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; default 1.")] = None,
    auth: Annotated[
        bool,
        typer.Option(
            "--auth/--no-auth",
            help="Require a token. Without, every user of this machine has all rights.",
        ),
    ] = True,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Upgrade the database, then exit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve datasets over HTTP: manifests, chains, plans, jobs and a dashboard.

    Example: evofeed serve --dataset demo=./demo-dataset

    It prints a token for this start and an address that signs a browser in with it; others are
    made with `evofeed tokens create`. Further settings come from EVOFEED_* variables
    (EVOFEED_DATABASE_URL, EVOFEED_AUTH, ...).
    """
    gc.disable()  # imported objects stay: scanning them again and again takes a fifth
    try:
        from evofeed.service.database.database import Database
        from evofeed.service.settings import load_settings

        named = _pairs(dataset or [])
        set_here: dict[str, Any] = {"host": host, "port": port, "workers": workers}
        set_here |= {"datasets": named}
        settings = load_settings(**{n: v for n, v in set_here.items() if v not in (None, "", {})})
        if not auth:
            settings = settings.model_copy(update={"auth": "off"})
        if migrate:
            with Database(settings.url) as database:
                database.upgrade()
            typer.echo(json.dumps({"migrated": True}) if as_json else "the database is up to date")
        else:
            _run(settings, as_json)
    finally:
        gc.enable()


def _run(settings: ServiceSettings, as_json: bool) -> None:
    """Serve until SIGINT or SIGTERM, then stop cleanly with exit code 0; at once at the second."""
    logging.basicConfig(level=settings.log_level, format="%(message)s")
    token = _start_token(settings)
    if settings.workers > 1:
        from evofeed.service.server import serve_workers

        serve_workers(settings, lambda url: _announce(settings, url, token, as_json))
        return
    from evofeed.service.server import serving

    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    with contextlib.ExitStack() as patient:
        for number in signals:
            patient.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        with serving(settings) as url:
            _announce(settings, url, token, as_json)
            stop.wait()
            patient.close()
    if any(thread.name.startswith("evofeed-work") for thread in threading.enumerate()):
        os._exit(0)  # Python would wait for threads blocked by a store that does not answer


def _start_token(settings: ServiceSettings) -> str:
    """The token to print; empty if none is created."""
    from evofeed.service.access.auth import LOCAL, make_start_token, revoke_token
    from evofeed.service.database.database import Database
    from evofeed.service.problems import Problem

    with Database(settings.url) as database:
        database.make_current()
        if settings.prints_token:
            return make_start_token(database)
        with contextlib.suppress(Problem):  # no start has printed one yet
            revoke_token(database, LOCAL.id)
    return ""


def _announce(settings: ServiceSettings, url: str, token: str, as_json: bool) -> None:
    if as_json:
        values = {"url": url, "datasets": sorted(settings.datasets), "auth": settings.auth_on}
        typer.echo(json.dumps(values | ({"token": token} if token else {})))
    else:
        typer.echo(f"serving on {url}  (dashboard at /, Ctrl-C stops)")
        if settings.host in ("0.0.0.0", "::"):
            name, port = (*settings.allowed_hosts, socket.gethostname())[0], url.rpartition(":")[2]
            closed = ", once EVOFEED_ALLOWED_HOSTS has it" if name not in settings.hosts else ""
            typer.echo(f"  others:   http://{name}:{port}{closed if settings.hosts else ''}")
            typer.echo("  not encrypted: put a proxy with TLS in front (docs/operate.md)")
        if token:
            typer.echo(f"  sign in:  {url}/ui/login?token={token}")
            typer.echo(f"  programs: export EVOFEED_TOKEN={token}")
        elif settings.auth_on:
            typer.echo(f"  sign in:  {url}/ui/login  with a token that this makes:")
            typer.echo(
                "            evofeed tokens create me --scope admin --scope publish --scope jobs"
            )
        for name in sorted(settings.datasets):
            typer.echo(f"  {name:<20} {url}/v1/datasets/{name}")
    sys.stdout.flush()
    gc.freeze()
    gc.enable()


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for item in texts:
        name, equals, uri = item.partition("=")
        if not equals or not uri:
            raise typer.BadParameter(f"{item!r}: write NAME=URI", param_hint="--dataset")
        path = Path(uri.removeprefix("file://"))
        if "://" not in uri.removeprefix("file://") and not path.is_dir():
            hint = f"mkdir -p {uri} for a new dataset, which jobs fill"
            raise InputError(f"no folder for dataset {name}; {hint}", path=uri)
        pairs[name] = uri
    return pairs

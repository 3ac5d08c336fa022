"""`evofeed --service URL ...`: the service's own jobs, tokens, webhooks and chains, over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.errors import InputError
from evofeed.files import write_atomic
from evofeed.options import Json, group
from evofeed.service.client.client import Client
from evofeed.service.client.views import Job
from evofeed.service.names import is_name

_TICKETS = 16  # that wait at once: a service takes some 50 of one caller
_MOST = 1_000_000
JobId = Annotated[str, typer.Argument(help="Id of the job, 16 digits.")]


jobs = group("Jobs of the service. Example: evofeed --service URL jobs ls")
tokens = group("Tokens of the service. Example: evofeed --service URL tokens ls")
webhooks = group("Whom the service tells. Example: evofeed --service URL webhooks ls")


def featurize(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="As the service sees it.")],
    dataset: Annotated[str, typer.Argument(help="Name of a registered dataset.")],
    ref: Annotated[str, typer.Option(help="What points at the snapshot; empty: none.")] = "main",
    message: Annotated[str, typer.Option(help="Why, for the ref's history.")] = "",
    preset: Annotated[str, typer.Option(help="`safe` or `openfold`.")] = "safe",
    workers: Annotated[int, typer.Option(min=0, help="0 is one per core.")] = 0,
    max_broken: Annotated[float, typer.Option(min=0, max=1, help="Share that may break.")] = 0.05,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has ended.")] = True,
    as_json: Json = False,
) -> None:
    """Have the service featurize raw files.

    Example: evofeed --service http://host:8461 featurize /data/raw pdb
    """
    with service_client() as client:
        job = client.submit(
            dataset, source, ref=ref or None, message=message, preset=preset, workers=workers,
            max_broken=max_broken,
        )  # fmt: skip
        if wait:
            job = _waited(client, job, as_json)
        _show(job, as_json)
        if job.has_ended and not as_json:
            for chain in client.broken(job.id):
                typer.echo(f"  {chain.chain_id}: {chain.message}")
    raise typer.Exit(1 if job.state in ("failed", "cancelled") else 0)


def search(
    source: Annotated[Path, typer.Argument(metavar="FASTA", help="Sequences.")],
    out: Annotated[Path, typer.Argument(help="Folder; a folder for each sequence goes there.")],
    mode: Annotated[str, typer.Option(help="env, all, env-nofilter, ...")] = "env",
    as_json: Json = False,
) -> None:
    """Have the service search alignments and template hits of sequences.

    Example: evofeed --service http://host:8461 search proteins.fasta msas/
    """
    from evofeed.service.tickets.text import parse_query

    names, sequences = parse_query(source.read_text(), _MOST)
    if odd := [name for name in names if not is_name(name)]:
        raise InputError("want a name that can be a folder's", path=str(source), item=odd[0][:40])
    with service_client() as client, ThreadPoolExecutor(_TICKETS) as pool:
        ask = functools.partial(client.search, mode=mode)
        for name, files in zip(names, pool.map(ask, sequences), strict=True):
            (out / name).mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                write_atomic(out / name / Path(file).name, data)
            rows = {file: data.count(b">") for file, data in files.items() if file[-4:] == ".a3m"}
            line = json.dumps({"name": name, "rows": rows})
            typer.echo(line if as_json else f"{name}: {sum(rows.values())} rows")


@jobs.command("ls")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: Json = False
) -> None:
    """The newest jobs.

    Example: evofeed --service http://host:8461 jobs ls
    """
    with service_client() as client:
        for job in client.jobs(limit):
            _show(job, as_json)


@jobs.command()
def status(
    job_id: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Until it has ended.")] = False,
    as_json: Json = False,
) -> None:
    """How far a job is.

    Example: evofeed --service http://host:8461 jobs status 0123456789abcdef --watch
    """
    with service_client() as client:
        job = client.job(job_id)
        _show(_waited(client, job, as_json) if watch else job, as_json)


@jobs.command()
def cancel(job_id: JobId, as_json: Json = False) -> None:
    """Ask a job to stop.

    Example: evofeed --service http://host:8461 jobs cancel 0123456789abcdef
    """
    with service_client() as client:
        _show(client.cancel(job_id), as_json)


@jobs.command()
def retry(job_id: JobId, as_json: Json = False) -> None:
    """Run a job that has ended again.

    Example: evofeed --service http://host:8461 jobs retry 0123456789abcdef
    """
    with service_client() as client:
        _show(client.retry(job_id), as_json)


@jobs.command()
def log(job_id: JobId) -> None:
    """What a job's last run wrote.

    Example: evofeed --service http://host:8461 jobs log 0123456789abcdef
    """
    with service_client() as client:
        typer.echo(client.log(job_id), nl=False)


@jobs.command()
def broken(job_id: JobId, as_json: Json = False) -> None:
    """Chains of a job that are in no snapshot, and why.

    Example: evofeed --service http://host:8461 jobs broken 0123456789abcdef
    """
    with service_client() as client:
        for chain in client.broken(job_id):
            print_one(chain, f"{chain.chain_id}  {chain.type}  {chain.message}", as_json)


@tokens.command("ls")
def list_tokens(as_json: Json = False) -> None:
    """All tokens, without their secrets.

    Example: evofeed --service http://host:8461 tokens ls
    """
    with service_client() as client:
        for token in client.tokens():
            state = "revoked" if token.revoked_at else f"until {token.expires_at or 'revoked'}"
            line = f"{token.id}  {','.join(token.scopes):<24} {state:<32} {token.label}"
            print_one(token, line, as_json)


@tokens.command("create")
def create_token(
    label: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, publish, jobs or admin; repeatable.")],
    dataset: Annotated[list[str] | None, typer.Option(help="For this dataset only.")] = None,
    days: Annotated[float, typer.Option(min=0, help="Days until it expires; 0: never.")] = 90,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once.

    Example: evofeed --service http://host:8461 tokens create trainer --scope read
    """
    seconds = days * 86_400 if days else None
    with service_client() as client:
        token_id, text = client.create_token(label, scope, datasets=dataset, seconds=seconds)
    typer.echo(json.dumps({"id": token_id, "token": text}) if as_json else text)


@tokens.command("revoke")
def revoke_token(token_id: Annotated[str, typer.Argument(help="Its id.")]) -> None:
    """Make a token worthless from now on.

    Example: evofeed --service http://host:8461 tokens revoke 0123456789abcdef
    """
    with service_client() as client:
        client.revoke_token(token_id)
    typer.echo(f"revoked {token_id}")


@webhooks.command("ls")
def list_webhooks(as_json: Json = False) -> None:
    """The webhooks of this token.

    Example: evofeed --service http://host:8461 webhooks ls
    """
    with service_client() as client:
        for hook in client.webhooks():
            print_one(hook, f"{hook.id}  {hook.url}  {','.join(hook.datasets or ['all'])}", as_json)


@webhooks.command("add")
def add_webhook(
    url: Annotated[str, typer.Argument(help="Whom to tell.")],
    dataset: Annotated[list[str] | None, typer.Option(help="Of it only.")] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(help="job.succeeded, ref.moved, chain.quarantined, ...; else: ends of jobs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell somebody of what happens; prints the secret that messages are signed with, this once.

    Example: evofeed --service http://host:8461 webhooks add https://hooks.example.org/evofeed
    """
    with service_client() as client:
        webhook_id, secret = client.add_webhook(url, dataset, event)
    line = json.dumps({"id": webhook_id, "secret": secret})
    typer.echo(line if as_json else f"{webhook_id}  {secret}")


@webhooks.command("ping")
def ping_webhook(webhook_id: Annotated[str, typer.Argument(help="Its id.")]) -> None:
    """Send it a message that says nothing.

    Example: evofeed --service http://host:8461 webhooks ping 0123456789abcdef
    """
    with service_client() as client:
        typer.echo(client.ping_webhook(webhook_id))


@webhooks.command("sent")
def list_sent(
    webhook_id: Annotated[str, typer.Argument(help="Its id.")],
    again: Annotated[str, typer.Option(help="Message to send once more.")] = "",
    as_json: Json = False,
) -> None:
    """What it was sent lately, and what came of it.

    Example: evofeed --service http://host:8461 webhooks sent 0123456789abcdef
    """
    with service_client() as client:
        if again:
            client.redeliver(webhook_id, again)
        for one in client.deliveries(webhook_id):
            line = f"{one['id']}  {one['type']:<18} {one['attempts']}  {one['outcome']}"
            typer.echo(json.dumps(one) if as_json else line)


@webhooks.command("rm")
def remove_webhook(webhook_id: Annotated[str, typer.Argument(help="Its id.")]) -> None:
    """End a webhook.

    Example: evofeed --service http://host:8461 webhooks rm 0123456789abcdef
    """
    with service_client() as client:
        client.remove_webhook(webhook_id)
    typer.echo(f"removed {webhook_id}")


@contextlib.contextmanager
def service_client() -> Iterator[Client]:
    """A client of the service that the command line named."""
    url = os.environ.get("EVOFEED_SERVICE", "")
    if not url.startswith(("http://", "https://")):
        raise InputError(f"--service {url!r}: expected http://HOST:PORT")
    with Client(url) as client:
        yield client


def _waited(client: Client, job: Job, as_json: bool) -> Job:
    seen = None if as_json else lambda now: typer.echo(_line(now), err=True)
    return client.wait(job.id, seconds=2.0, seen=seen)


def _show(job: Job, as_json: bool) -> None:
    print_one(job, _line(job), as_json)


def _line(job: Job) -> str:
    good, broken_ = job.progress.get("good", 0), job.progress.get("broken", 0)
    left = job.progress.get("seconds_left")
    eta = f", {left:.0f} s left" if isinstance(left, int | float) and not job.has_ended else ""
    error = f": {job.error}" if job.error else ""
    return f"{job.id}  {job.dataset:<16} {job.state:<10} {good} good, {broken_} broken{eta}{error}"


def print_one(what: Any, line: str, as_json: bool) -> None:
    """One line for people, or for machines."""
    typer.echo(json.dumps(dataclasses.asdict(what)) if as_json else line)

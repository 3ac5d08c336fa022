"""Commands that run on a service, when one of their arguments is its URL."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evofeed.base.errors import InputError, ServiceError
from evofeed.base.files import parse_json, write_atomic
from evofeed.base.options import Json, group
from evofeed.service.views import BrokenChain, Job

if TYPE_CHECKING:
    from evofeed.service.client.client import Client

_TICKETS: Final = 16  # waiting at once: a service accepts some 50 of one caller
Url = Annotated[str, typer.Argument(metavar="URL", help="The service: http://HOST:PORT.")]
DatasetUrl = Annotated[
    str, typer.Argument(metavar="URL", help="Dataset: http://HOST:PORT/v1/datasets/NAME.")
]
MaybeUrl = Annotated[
    str, typer.Argument(metavar="[URL]", help="http://HOST:PORT; default: this machine's database.")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, 16 digits.")]
RefName = Annotated[str, typer.Argument(help="Ref; for a policy it may not exist yet.")]
Message = Annotated[str, typer.Option(help="Reason, for the ref's history.")]

jobs = group("Jobs of a service. Example: evofeed jobs ls http://host:8461")
snapshots = group(
    "Refs of a service's dataset. Example: evofeed snapshots history http://host:8461/v1/datasets/x"
)
tokens = group("API tokens of the service. Example: evofeed tokens create trainer --scope read")


def featurize(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Path on the service's machine.")],
    url: DatasetUrl,
    ref: Annotated[str, typer.Option(help="Ref to point at the snapshot; empty: none.")] = "main",
    message: Message = "",
    preset: Annotated[str, typer.Option(help="`default` or `openfold`.")] = "default",
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    max_broken: Annotated[float, typer.Option(min=0, max=1, help="Share that may break.")] = 0.05,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until the job ends.")] = True,
    as_json: Json = False,
) -> None:
    """Have the service featurize raw files into one of its datasets.

    Example: evofeed featurize /data/raw http://host:8461/v1/datasets/pdb
    """
    if preset not in ("default", "openfold"):
        raise typer.BadParameter(f"no preset {preset!r}: default or openfold")
    with _dataset(url) as (client, dataset):
        job = client.submit(
            dataset, source, ref=ref or None, message=message, workers=workers,
            preset="openfold" if preset == "openfold" else "safe", max_broken=max_broken,
        )  # fmt: skip
        if wait:
            job = _waited(client, job, as_json)
        _show(job, as_json)
        if job.has_ended and not as_json:
            for chain in client.broken(job.id):
                typer.echo(f"  {_why(chain)}")
    raise typer.Exit(1 if job.state in ("failed", "cancelled") else 0)


def search(
    source: Annotated[Path, typer.Argument(metavar="FASTA", help="Sequences.")],
    out: Annotated[Path, typer.Argument(help="Output folder, with a folder per sequence.")],
    url: Url,
    mode: Annotated[str, typer.Option(help="env, all, env-nofilter, ...")] = "env",
    as_json: Json = False,
) -> None:
    """Have the service search alignments and template hits of sequences.

    Example: evofeed search proteins.fasta msas/ http://host:8461
    """
    queries = _read_fasta(source)
    with _client(url) as client, ThreadPoolExecutor(_TICKETS) as pool:
        ask = functools.partial(client.search, mode=mode)
        for name, files in zip(queries, pool.map(ask, queries.values()), strict=True):
            (out / name).mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                write_atomic(out / name / Path(file).name, data)
            rows = {file: data.count(b">") for file, data in files.items() if file[-4:] == ".a3m"}
            line = json.dumps({"name": name, "rows": rows})
            typer.echo(line if as_json else f"{name}: {sum(rows.values())} rows")


@jobs.command("ls")
def list_jobs(
    url: Url, limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: Json = False
) -> None:
    """List the newest jobs.

    Example: evofeed jobs ls http://host:8461
    """
    with _client(url) as client:
        for job in client.jobs(limit):
            _show(job, as_json)


@jobs.command()
def status(
    url: Url,
    job_id: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Show the progress of a job.

    Example: evofeed jobs status http://host:8461 0123456789abcdef --watch
    """
    with _client(url) as client:
        job = client.job(job_id)
        _show(_waited(client, job, as_json) if watch else job, as_json)


@jobs.command()
def cancel(url: Url, job_id: JobId, as_json: Json = False) -> None:
    """Cancel a job.

    Example: evofeed jobs cancel http://host:8461 0123456789abcdef
    """
    with _client(url) as client:
        _show(client.cancel(job_id), as_json)


@jobs.command()
def retry(url: Url, job_id: JobId, as_json: Json = False) -> None:
    """Retry a job that has ended.

    Example: evofeed jobs retry http://host:8461 0123456789abcdef
    """
    with _client(url) as client:
        _show(client.retry(job_id), as_json)


@jobs.command()
def log(url: Url, job_id: JobId, as_json: Json = False) -> None:
    """Print the log of a job's last run.

    Example: evofeed jobs log http://host:8461 0123456789abcdef
    """
    with _client(url) as client:
        text = client.log(job_id)
    typer.echo(json.dumps({"log": text}) if as_json else text, nl=as_json)


@jobs.command()
def broken(url: Url, job_id: JobId, as_json: Json = False) -> None:
    """List the chains that a job could not publish, and why.

    Example: evofeed jobs broken http://host:8461 0123456789abcdef
    """
    with _client(url) as client:
        for chain in client.broken(job_id):
            _print(chain, _why(chain), as_json)


@snapshots.command()
def history(url: DatasetUrl, ref: RefName = "main", as_json: Json = False) -> None:
    """List the moves of a ref, newest first: who moved it, by which job, why.

    Example: evofeed snapshots history http://host:8461/v1/datasets/pdb main
    """
    with _dataset(url) as (client, dataset):
        for move in client.history(dataset, ref):
            to = move.digest[:12] or "(deleted)"
            by = f"{move.principal} {move.job or ''}".strip()
            _print(move, f"{move.moved_at}  {to:<12}  {by}  {move.message}", as_json)


@snapshots.command()
def tag(
    url: DatasetUrl,
    name: RefName,
    snapshot: Annotated[str, typer.Argument(help="Ref or digest.")] = "main",
    move: Annotated[bool, typer.Option("--move", help="Move an existing ref.")] = False,
    message: Message = "",
    as_json: Json = False,
) -> None:
    """Point a ref at a snapshot, within its policy.

    Example: evofeed snapshots tag http://host:8461/v1/datasets/pdb v1 main
    """
    with _dataset(url) as (client, dataset):
        digests = {state.name: state.digest for state in client.refs(dataset)}
        digest, expect = digests.get(snapshot, snapshot), digests.get(name) if move else None
        ref = client.move_ref(dataset, name, digest, expect=expect, message=message)
    _print(ref, f"{ref.name:<20} {ref.digest}", as_json)


@snapshots.command("rm-ref")
def remove_ref(
    url: DatasetUrl, name: RefName, message: Message = "", as_json: Json = False
) -> None:
    """Delete a ref; its history stays, and its snapshot for 7 days.

    Example: evofeed snapshots rm-ref http://host:8461/v1/datasets/pdb v1
    """
    with _dataset(url) as (client, dataset):
        client.delete_ref(dataset, name, expect=client.ref(dataset, name).digest, message=message)
    typer.echo(json.dumps({"deleted": name}) if as_json else f"deleted {name}")


@snapshots.command()
def policy(
    url: DatasetUrl,
    ref: RefName = "main",
    replace: Annotated[str, typer.Option("--set", metavar="JSON", help="The new policy.")] = "",
    as_json: Json = False,
) -> None:
    """Print or set the conditions for moving a ref, as JSON.

    Example: evofeed snapshots policy http://host:8461/v1/datasets/pdb --set '{"protected": true}'
    """
    with _dataset(url) as (client, dataset):
        if replace:
            try:
                client.set_policy(dataset, ref, **parse_json(replace))
            except (ValueError, TypeError) as error:
                raise typer.BadParameter(f"--set: {error}") from None
        typer.echo(json.dumps(client.policy(dataset, ref), indent=None if as_json else 2))


@tokens.command()
def create(
    label: Annotated[str, typer.Argument(help="Purpose of the token.")],
    scope: Annotated[list[str], typer.Option(help="read, publish, jobs or admin; repeatable.")],
    url: MaybeUrl = "",
    dataset: Annotated[
        list[str] | None, typer.Option(help="For this dataset only; repeatable.")
    ] = None,
    root: Annotated[
        list[str] | None, typer.Option(help="Only folders below this one; repeatable.")
    ] = None,
    days: Annotated[float, typer.Option(min=0, max=3660, help="Until it expires; 0: never.")] = 90,
    as_json: Json = False,
) -> None:
    """Make a token and print it; it is not shown again.

    Example: evofeed tokens create trainer --scope read --dataset pdb --days 30
    """
    from evofeed.service.access.auth import SCOPES  # needs more than a client's install

    if wrong := [name for name in scope if name not in SCOPES]:
        message = f"{wrong[0]!r} is none of {', '.join(SCOPES)}"
        raise typer.BadParameter(message, param_hint="--scope")
    seconds = days * 86_400 if days else None
    with _service(url) as service:
        token_id, text = service.create_token(
            label, scope, datasets=dataset, roots=root, seconds=seconds
        )
    typer.echo(json.dumps({"id": token_id, "token": text}) if as_json else text)


@tokens.command("ls")
def list_tokens(url: MaybeUrl = "", as_json: Json = False) -> None:
    """List tokens, without their secrets.

    Example: evofeed tokens ls
    """
    with _service(url) as service:
        for token in service.tokens():
            until = "revoked" if token.revoked_at else f"until {token.expires_at or 'revoked'}"
            scopes, datasets = ",".join(token.scopes), ",".join(token.datasets or ["all"])
            line = f"{token.id}  {scopes:<24} {datasets:<20} {until:<32} {token.label}"
            _print(token, line, as_json)


@tokens.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Its id, the 16 digits behind evf_.")],
    url: MaybeUrl = "",
    as_json: Json = False,
) -> None:
    """Revoke a token.

    Example: evofeed tokens revoke 0123456789abcdef
    """
    with _service(url) as service:
        service.revoke_token(token_id)
    typer.echo(json.dumps({"revoked": token_id}) if as_json else f"revoked {token_id}")


@contextmanager
def _service(url: str) -> Iterator[Any]:
    """The token functions of `Client`, of a service or of this machine's database (for the first
    token)."""
    if url:
        with _client(url) as client:
            yield client
        return
    from evofeed.service.access import auth
    from evofeed.service.access.places import canonical_root
    from evofeed.service.database.database import Database
    from evofeed.service.settings import load_settings

    with Database(load_settings().url) as database:
        database.make_current()

        def create_token(label: str, scopes: list[str], **options: Any) -> tuple[str, str]:
            if options["roots"] is not None:
                options["roots"] = [canonical_root(root) for root in options["roots"]]
            return auth.create_token(database, label=label, scopes=scopes, **options)

        yield SimpleNamespace(
            create_token=create_token,
            tokens=functools.partial(auth.tokens_after, database),
            revoke_token=functools.partial(auth.revoke_token, database),
        )


def _client(url: str) -> Client:
    from evofeed.service.client.client import Client  # imports Arrow, which --help does not need

    return Client(url)


@contextmanager
def _dataset(url: str) -> Iterator[tuple[Client, str]]:
    """A client of the service, and the name of its dataset, that a URL names."""
    service, _, name = url.rstrip("/").rpartition("/datasets/")
    if not service or "/" in name or not name:
        raise InputError(f"{url!r} is not a dataset's URL: write http://HOST:PORT/v1/datasets/NAME")
    with _client(service) as client:
        yield client, name


def _read_fasta(path: Path) -> dict[str, str]:
    """Sequences by their names, which become folders."""
    queries: dict[str, str] = {}
    for record in path.read_text().split(">")[1:]:
        head, _, body = record.partition("\n")
        name = (head.split() or [""])[0]
        if not name or name.startswith(".") or "/" in name or name in queries:
            message = "give each sequence a different name that can be a folder's"
            raise InputError(message, path=str(path), item=name[:40])
        queries[name] = "".join(body.split()).upper()
    if not queries:
        raise InputError("expected a FASTA file: a line beginning with > above each sequence",
                         path=str(path))  # fmt: skip
    return queries


def _waited(client: Client, job: Job, as_json: bool) -> Job:
    def report(now: Job) -> None:
        if not (as_json or now.has_ended):  # how it ended is the command's output
            typer.echo(_line(now), err=True)

    try:
        return client.wait(job.id, seconds=2.0, seen=report)
    except ServiceError:
        job = client.job(job.id)
        if not job.has_ended:
            raise
        return job


def _why(chain: BrokenChain) -> str:
    location = ":".join(str(part) for part in (chain.path, chain.line) if part)
    return ": ".join(word for word in (chain.chain_id, location, chain.message) if word)


def _show(job: Job, as_json: bool) -> None:
    _print(job, _line(job), as_json)


def _line(job: Job) -> str:
    result, now = job.result, job.progress  # an ended job has its totals in the result
    good, broken_ = (result.get(f"num_{name}", now.get(name, 0)) for name in ("good", "broken"))
    left = now.get("seconds_left")
    eta = f", {left:.0f} s left" if isinstance(left, int | float) and not job.has_ended else ""
    error = f": {job.error}" if job.error else ""
    return f"{job.id}  {job.dataset:<16} {job.state:<10} {good} good, {broken_} broken{eta}{error}"


def _print(value: Any, line: str, as_json: bool) -> None:
    """One line for people, or for machines."""
    typer.echo(json.dumps(dataclasses.asdict(value)) if as_json else line)

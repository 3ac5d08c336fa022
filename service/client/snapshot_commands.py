"""`evofeed --service URL snapshots ...`: a service's snapshots and refs, read and written."""

from __future__ import annotations

from typing import Annotated

import typer

from evofeed.options import Json, group
from evofeed.service.client.commands import print_one, service_client

snapshots = group("Its snapshots and refs. Example: evofeed --service URL snapshots refs pdb")
Dataset = Annotated[str, typer.Argument(help="Name of a registered dataset.")]
Ref = Annotated[str, typer.Option(help="What shall point at it; empty: none.")]
Message = Annotated[str, typer.Option(help="Why, for the ref's history.")]


@snapshots.command()
def refs(dataset: Dataset, as_json: Json = False) -> None:
    """Where the refs of a dataset point.

    Example: evofeed --service http://host:8461 snapshots refs pdb
    """
    with service_client() as client:
        for ref in client.refs(dataset):
            print_one(ref, f"{ref.name:<20} {ref.digest}  {ref.updated_at}", as_json)


@snapshots.command()
def history(
    dataset: Dataset,
    ref: Annotated[str, typer.Argument(help="Ref.")] = "main",
    as_json: Json = False,
) -> None:
    """Where a ref has been, newest first: who moved it, by which job, why.

    Example: evofeed --service http://host:8461 snapshots history pdb main
    """
    with service_client() as client:
        for move in client.history(dataset, ref):
            to = move.digest[:12] or "(deleted)"
            by = f"{move.principal} {move.job or ''}".strip()
            print_one(move, f"{move.moved_at}  {to:<12}  {by}  {move.message}", as_json)


@snapshots.command()
def push(
    source: Annotated[str, typer.Argument(help="Dataset it is in: folder, bucket or service.")],
    dataset: Dataset,
    snapshot: Annotated[str, typer.Option(help="Ref or digest.")] = "main",
    ref: Ref = "main",
    message: Message = "",
    as_json: Json = False,
) -> None:
    """Send a snapshot to a service; run again after a fault, it goes on.

    Example: evofeed --service http://host:8461 snapshots push ./demo pdb --message "first"
    """

    def seen(count: int, of: int) -> None:
        if not as_json:
            typer.echo(f"{count} of {of} shards", err=True)

    with service_client() as client:
        made = client.push(
            source, dataset, snapshot=snapshot, ref=ref or None, message=message, seen=seen
        )
    print_one(made, f"{made.digest}  {made.num_chains} chains  {made.ref or ''}", as_json)


@snapshots.command()
def merge(
    dataset: Dataset,
    other: Annotated[str, typer.Argument(help="Dataset whose chains are added.")],
    snapshot: Annotated[str, typer.Option(help="Its ref or digest.")] = "main",
    ref: Annotated[str, typer.Option(help="What they are added to.")] = "main",
    message: Message = "",
    as_json: Json = False,
) -> None:
    """Add another snapshot's chains to a ref's.

    Example: evofeed --service http://host:8461 snapshots merge pdb pdb-2026
    """
    with service_client() as client:
        made = client.merge(
            dataset,
            other,
            expect=client.ref(dataset, ref).digest,
            snapshot=snapshot,
            ref=ref,
            message=message,
        )
    print_one(made, f"{made.digest}  {made.num_chains} chains  {made.ref}", as_json)


@snapshots.command()
def tag(
    dataset: Dataset,
    name: Annotated[str, typer.Argument(help="The new ref.")],
    snapshot: Annotated[str, typer.Option(help="Ref or digest.")] = "main",
    message: Message = "",
    as_json: Json = False,
) -> None:
    """Make a ref that points at a snapshot; one that exists stays where it is.

    Example: evofeed --service http://host:8461 snapshots tag pdb v1
    """
    with service_client() as client:
        there = {one.name: one.digest for one in client.refs(dataset)}
        digest = there.get(snapshot, snapshot)
        ref = client.move_ref(dataset, name, digest, expect=None, message=message)
    print_one(ref, f"{ref.name:<20} {ref.digest}", as_json)


@snapshots.command("rm-ref")
def remove_ref(
    dataset: Dataset,
    name: Annotated[str, typer.Argument(help="The ref.")],
    message: Message = "",
) -> None:
    """Delete a ref; its history stays, and its snapshot for 7 days.

    Example: evofeed --service http://host:8461 snapshots rm-ref pdb v1
    """
    with service_client() as client:
        client.delete_ref(dataset, name, expect=client.ref(dataset, name).digest, message=message)
    typer.echo(f"deleted {name}")

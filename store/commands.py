"""`evofeed snapshots`: look at datasets, change them, check them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.base.options import Json, group
from evofeed.store.change_commands import changes
from evofeed.store.command_parts import Commands, RefName, Uri, show

snapshots = group(
    "Snapshots of a dataset: list, compare, tag, change, verify, collect.\n\n"
    "Example: evofeed snapshots ls data/",
    cls=Commands,
)
_TO_REPAIR = (
    "to repair: remove the damaged files and run the `evofeed featurize` that made them again, "
    "which makes only what is missing; or copy the snapshot from a sound place"
)


@snapshots.command("ls")
def list_all(uri: Uri, as_json: Json = False) -> None:
    """All snapshots, newest first, and the refs that point at them.

    Example: evofeed snapshots ls data/
    """
    from evofeed.store.history import list_snapshots
    from evofeed.store.opening import open_storage
    from evofeed.store.refs import list_refs, read_ref

    storage = open_storage(uri)
    names: dict[str, list[str]] = {}
    for ref in list_refs(storage):
        names.setdefault(ref.digest, []).append(ref.name)
    rows: list[dict[str, Any]] = [
        {
            "digest": snapshot.digest,
            "refs": names.get(snapshot.digest, []),
            "chains": snapshot.manifest.num_chains,
            "shards": len(snapshot.manifest.shards),
            "nbytes": sum(shard.nbytes for shard in snapshot.manifest.shards),
            "parent": snapshot.manifest.parent,
        }
        for snapshot in list_snapshots(storage)
    ]
    lines = [
        f"{row['digest'][:12]}  {row['chains']:>9,} chains  {row['shards']:>5,} shards  "
        f"{row['nbytes'] / 1e6:>11,.1f} MB  {' '.join(row['refs'])}".rstrip()
        for row in rows
    ]
    there = {row["digest"] for row in rows}
    lines += [
        f"{digest[:12]}  is not here, though it should be  {' '.join(refs)}"
        for digest, refs in names.items()
        if digest not in there
    ]
    if not rows:
        read_ref(storage, "main")  # says that there is no dataset here, and what makes one
    show(as_json, rows, lines)


@snapshots.command()
def chains(uri: Uri, snapshot: RefName = "main", as_json: Json = False) -> None:
    """The chains of a snapshot, with their sizes, resolution and release date.

    Example: evofeed snapshots chains data/
    """
    from evofeed.store import Dataset

    names = ["chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date"]
    rows = Dataset.open(uri, snapshot).index.select(names).to_pylist()
    lines = [f"{'chain':<12} {'residues':>8} {'rows':>7} {'templates':>9} {'Å':>6}  released"]
    for row in rows:
        resolution = f"{row['resolution']:.2f}" if row["resolution"] else "-"
        lines.append(
            f"{row['chain_id']:<12} {row['num_res']:>8} {row['num_alignments']:>7} "
            f"{row['num_templates']:>9} {resolution:>6}  {row['release_date'] or '-'}"
        )
    show(as_json, rows, lines)


@snapshots.command()
def card(
    uri: Uri,
    out: Annotated[Path | None, typer.Option(help="Folder for README.md and card.png.")] = None,
    snapshot: RefName = "main",
    name: Annotated[str, typer.Option(help="Of the data set.")] = "",
    description: Annotated[str, typer.Option(help="In a sentence or two.")] = "",
    license_name: Annotated[str, typer.Option("--license", help="SPDX name or address.")] = "",
    url: Annotated[str, typer.Option(help="Where people find it.")] = "",
    report: Annotated[
        Path | None, typer.Option(help="A job's report: what it left out of good chains.")
    ] = None,
    as_json: Json = False,
) -> None:
    """A data card: what a snapshot holds, what was left out and why.

    With --out it is written as Markdown, with plots.

    Example: evofeed snapshots card data/ --out card/ --license CC-BY-4.0
    """
    from evofeed.store import Dataset, dataset_card

    made = dataset_card(
        Dataset.open(uri, snapshot),
        name=name,
        description=description,
        license_name=license_name,
        url=url,
        notes=json.loads(report.read_text())["notes"] if report else None,
    )
    if out is None:
        show(as_json, made.to_dict(), [made.to_markdown().rstrip()])
        return
    files = made.write(out)
    show(as_json, {"files": files}, files)


@snapshots.command()
def diff(
    uri: Uri,
    first: Annotated[str, typer.Argument(metavar="A", help="Ref or digest.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Ref or digest.")] = "main",
    as_json: Json = False,
) -> None:
    """Chains added, removed and changed from snapshot A to B.

    Example: evofeed snapshots diff data/ v1 main
    """
    from evofeed.store import Dataset

    changes = Dataset.open(uri, second).diff(first).to_dict()
    marks = {"added": "+", "removed": "-", "changed": "~"}
    lines = [f"{marks[kind]} {chain_id}" for kind in marks for chain_id in changes[kind]]
    counts = ", ".join(f"{len(changes[kind])} {kind}" for kind in marks)
    show(as_json, changes, [*lines, counts])


@snapshots.command()
def overlap(
    uri: Uri,
    other: Annotated[str, typer.Argument(help="The other dataset, such as the test set.")],
    clusters: Annotated[str, typer.Option(help="File with a sequence cluster per line.")] = "",
    snapshot: RefName = "main",
    other_snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """Chains of DATASET that are in OTHER too, or in a cluster with one there; exit code 1 if any.

    Example: evofeed snapshots overlap train/ valid/ --clusters clusters.txt
    """
    from evofeed.store import Dataset
    from evofeed.store.likeness import Clusters
    from evofeed.store.likeness import overlap as compare

    known = Clusters(clusters) if clusters else None
    found = compare(Dataset.open(uri, snapshot), Dataset.open(other, other_snapshot), known)
    lines = [f"{mine}  {theirs}" for mine, theirs in found.shared]
    lines += [f"{chain_id}  is in no cluster" for chain_id in found.unclustered]
    lines.append(f"{len(found.shared)} shared, {len(found.unclustered)} in no cluster")
    show(as_json, dataclasses.asdict(found), lines)
    raise typer.Exit(1 if found else 0)


@snapshots.command()
def verify(
    uri: Uri,
    snapshot: RefName = "main",
    deep: Annotated[bool, typer.Option("--deep", help="Also hash shards, decode all.")] = False,
    as_json: Json = False,
) -> None:
    """Check every chain of a snapshot; exit code 1 and one line for each fault.

    Example: evofeed snapshots verify data/ --deep
    """
    from evofeed.store import Dataset

    dataset = Dataset.open(uri, snapshot)
    faults = dataset.verify(deep)
    values = {"chains": len(dataset), "faults": [fault.to_dict() for fault in faults]}
    lines = [*map(str, faults), f"{len(dataset):,} chains, {len(faults)} faults"]
    lines += [_TO_REPAIR] if faults else []
    show(as_json, values, lines)
    raise typer.Exit(1 if faults else 0)


snapshots.add_typer(changes)

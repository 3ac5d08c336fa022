"""`evofeed snapshots`: commands that list, change and verify datasets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.base.counts import counted
from evofeed.base.files import parse_json
from evofeed.base.options import Json, count_bar, group

Uri = Annotated[
    str, typer.Argument(metavar="DATASET", help="Folder, s3:// or http:// address, also @REF.")
]
RefName = Annotated[str, typer.Option(help="Ref or digest; 8 digits are enough.")]
Moved = Annotated[str, typer.Option(help="The ref to read and move.")]


def _show(as_json: bool, values: Any, lines: list[str]) -> None:
    """Print JSON, or lines of text."""
    typer.echo(json.dumps(values, indent=2) if as_json else "\n".join(lines))


def _open(uri: str, snapshot: str) -> Any:
    from evofeed.store import Dataset, address_and_ref  # not at the top: --help needs no Arrow

    return Dataset.open(*address_and_ref(uri, snapshot))


snapshots = group(
    "Snapshots of a dataset: list, compare, tag, change, verify, collect.\n\n"
    "Example: evofeed snapshots ls data/"
)
_NOUNS = {"chains": "chain", "assemblies": "assembly", "entries": "entry"}
_TO_REPAIR = (
    "to repair: remove the damaged files and run the `evofeed featurize` that made them again, "
    "which makes only what is missing; or copy the snapshot from a backup"
)


@snapshots.command("ls")
def list_all(uri: Uri, as_json: Json = False) -> None:
    """List all snapshots, newest first, and the refs that point at them.

    Example: evofeed snapshots ls data/
    """
    from evofeed.store.history import list_snapshots
    from evofeed.store.opening import open_storage
    from evofeed.store.refs import list_refs, read_ref

    storage = open_storage(uri)
    names: dict[str, list[str]] = {}
    for ref in list_refs(storage):
        names.setdefault(ref.digest, []).append(ref.name)
    rows: list[dict[str, Any]] = []
    lines = []
    for snapshot in list_snapshots(storage):
        digest, manifest = snapshot.digest, snapshot.manifest
        sizes = {"chains": manifest.num_chains}
        for kind, part in (("assemblies", manifest.assemblies), ("entries", manifest.entries)):
            sizes[kind] = part["num"] if part else 0
        counts = ", ".join(
            counted(n, _NOUNS[kind], kind) for kind, n in sizes.items() if n or kind == "chains"
        )
        refs, nbytes = names.get(digest, []), sum(shard.nbytes for shard in manifest.shards)
        shards = {"shards": len(manifest.shards), "nbytes": nbytes, "parent": manifest.parent}
        rows.append({"digest": digest, "refs": refs, **sizes, **shards})
        line = f"{digest[:12]}  {counts:>16}  {counted(len(manifest.shards), 'shard'):>12}  "
        lines.append(f"{line}{nbytes / 1e6:>11,.1f} MB  {' '.join(refs)}".rstrip())
    present = {row["digest"] for row in rows}
    lines += [
        f"{digest[:12]}  is not here, though it should be  {' '.join(refs)}"
        for digest, refs in names.items()
        if digest not in present
    ]
    if not rows:
        read_ref(storage, "main")  # raises the error that names the command that makes a dataset
    _show(as_json, rows, lines)


@snapshots.command()
def chains(uri: Uri, snapshot: RefName = "main", as_json: Json = False) -> None:
    """List the chains of a snapshot, with their sizes, resolution and release date.

    Example: evofeed snapshots chains data/
    """
    names = ["chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date"]
    rows = _open(uri, snapshot).index.select(names).to_pylist()
    lines = [f"{'chain':<12} {'residues':>8} {'rows':>7} {'templates':>9} {'Å':>6}  released"]
    for row in rows:
        resolution = f"{row['resolution']:.2f}" if row["resolution"] else "-"
        lines.append(
            f"{row['chain_id']:<12} {row['num_res']:>8} {row['num_alignments']:>7} "
            f"{row['num_templates']:>9} {resolution:>6}  {row['release_date'] or '-'}"
        )
    _show(as_json, rows, lines)


@snapshots.command()
def card(
    uri: Uri,
    out: Annotated[Path | None, typer.Option(help="Folder for README.md and card.png.")] = None,
    snapshot: RefName = "main",
    name: Annotated[str, typer.Option(help="Data set's name.")] = "",
    description: Annotated[str, typer.Option(help="One or two sentences.")] = "",
    license_name: Annotated[str, typer.Option("--license", help="SPDX name or address.")] = "",
    url: Annotated[str, typer.Option(help="Its home page.")] = "",
    report: Annotated[
        Path | None, typer.Option(help="A job's report: what it left out of good chains.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a data card: contents of a snapshot, what was left out and why.

    With --out it is written as Markdown, with plots.

    Example: evofeed snapshots card data/ --out card/ --license CC-BY-4.0
    """
    from evofeed.store import dataset_card

    try:
        notes = parse_json(report.read_text())["notes"] if report else None
    except (ValueError, TypeError, KeyError) as error:
        raise typer.BadParameter(f"{report} is not a report of a job ({error})") from None
    texts = {"name": name, "description": description, "license_name": license_name, "url": url}
    data_card = dataset_card(_open(uri, snapshot), **texts, notes=notes)
    if out is None:
        _show(as_json, data_card.to_dict(), [data_card.to_markdown().rstrip()])
        return
    files = data_card.write(out)
    _show(as_json, {"files": files}, files)


@snapshots.command()
def diff(
    uri: Uri,
    first: Annotated[str, typer.Argument(metavar="A", help="Ref or digest.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Ref or digest.")] = "main",
    as_json: Json = False,
) -> None:
    """List chains added, removed and changed from snapshot A to B.

    Example: evofeed snapshots diff data/ v1 main
    """
    from evofeed.store import Dataset

    changes = Dataset.open(uri, second).diff(first).to_dict()
    marks = {"added": "+", "removed": "-", "changed": "~"}
    lines = [f"{marks[kind]} {chain_id}" for kind in marks for chain_id in changes[kind]]
    counts = ", ".join(f"{len(changes[kind])} {kind}" for kind in marks)
    _show(as_json, changes, [*lines, counts])


@snapshots.command()
def overlap(
    uri: Uri,
    other: Annotated[str, typer.Argument(help="The other dataset, such as the test set.")],
    clusters: Annotated[str, typer.Option(help="File with a sequence cluster per line.")] = "",
    snapshot: RefName = "main",
    other_snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """List chains of DATASET that are in OTHER or share a cluster with it; exit code 1 if any.

    Example: evofeed snapshots overlap train/ valid/ --clusters clusters.txt
    """
    from evofeed.store.likeness import Clusters
    from evofeed.store.likeness import overlap as compare

    cluster_file = Clusters(clusters) if clusters else None
    common = compare(_open(uri, snapshot), _open(other, other_snapshot), cluster_file)
    lines = [f"{mine}  {theirs}" for mine, theirs in common.shared]
    lines += [f"{chain_id}  is in no cluster" for chain_id in common.unclustered]
    lines.append(f"{len(common.shared)} shared, {len(common.unclustered)} in no cluster")
    _show(as_json, dataclasses.asdict(common), lines)
    raise typer.Exit(1 if common else 0)


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
    dataset = _open(uri, snapshot)
    with count_bar("checking", as_json, "records and shards") as progress:
        faults = dataset.verify(deep, progress)
    values = {"chains": len(dataset), "faults": [fault.to_dict() for fault in faults]}
    lines = [
        *map(str, faults),
        f"{counted(len(dataset), 'chain')}, {counted(len(faults), 'fault')}",
    ]
    lines += [_TO_REPAIR] if faults else []
    _show(as_json, values, lines)
    raise typer.Exit(1 if faults else 0)


@snapshots.command()
def select(
    uri: Uri,
    into: Annotated[str, typer.Argument(help="The ref to make or move.")],
    snapshot: RefName = "main",
    released_from: Annotated[str, typer.Option(help="First day, an ISO date.")] = "",
    released_before: Annotated[str, typer.Option(help="First day to exclude, an ISO date.")] = "",
    max_resolution: Annotated[float | None, typer.Option(help="Ångström.")] = None,
    min_residues: Annotated[int, typer.Option(min=0)] = 0,
    max_residues: Annotated[int | None, typer.Option(min=1)] = None,
    min_alignments: Annotated[int, typer.Option(min=0, help="Rows of the alignment.")] = 0,
    max_aa_fraction: Annotated[
        float | None, typer.Option(help="Share of the commonest residue; AF2: 0.8.")
    ] = None,
    with_structure: Annotated[bool, typer.Option("--with-structure")] = False,
    apart_from: Annotated[
        list[str] | None, typer.Option(help="Dataset, or DATASET@REF; repeatable.")
    ] = None,
    clusters: Annotated[str, typer.Option(help="Clusters, for --apart-from and sizes.")] = "",
    as_json: Json = False,
) -> None:
    """Make a ref of the chains that pass limits; list the others with the reason.

    Example: evofeed snapshots select data/ train --max-resolution 9 --released-before 2018-04-30
    """
    from evofeed.store import Selection, address_and_ref, select_chains
    from evofeed.store.likeness import Clusters

    limits = Selection(
        released_from=released_from, released_before=released_before,
        max_resolution=max_resolution, min_residues=min_residues, max_residues=max_residues,
        min_alignments=min_alignments, max_aa_fraction=max_aa_fraction,
        with_structure=with_structure,
    )  # fmt: skip
    others = [_open(text, "main") for text in apart_from or ()]
    cluster_file = Clusters(clusters) if clusters else None
    uri, snapshot = address_and_ref(uri, snapshot)
    selected = select_chains(
        uri, into, limits, snapshot=snapshot, apart_from=others, clusters=cluster_file
    )
    _parts({into: selected}, as_json)


@snapshots.command()
def split(
    uri: Uri,
    clusters: Annotated[str, typer.Option(help="File of `evofeed cluster`.")] = "",
    share: Annotated[list[str] | None, typer.Option(help="REF=FRACTION, repeatable.")] = None,
    released: Annotated[str, typer.Option(help="REF=ISO-DATE: chains from that day on.")] = "",
    max_identity: Annotated[
        float, typer.Option(min=0, max=1, help="Between parts; 1 skips the search.")
    ] = 0.4,
    allow_similar: Annotated[
        bool, typer.Option("--allow-similar", help="Publish although chains are similar.")
    ] = False,
    snapshot: RefName = "main",
    seed: Annotated[int, typer.Option(help="For the order of clusters.")] = 0,
    as_json: Json = False,
) -> None:
    """Split a snapshot so that no cluster is in two parts; the rest is called `train`.

    The parts are then searched against each other with mmseqs: the strongest pairs are printed and
    written to the card, and nothing is published if chains of two parts are more similar than
    --max-identity over 40 residues.

    Example: evofeed snapshots split data/ --clusters clusters.tsv --share valid=0.1

    Example: evofeed snapshots split data/ --clusters clusters.tsv --released valid=2021-09-30
    """
    from evofeed.store import address_and_ref, split_chains
    from evofeed.store.likeness import Clusters

    try:
        pairs = (text.partition("=") for text in share or ())
        shares = {ref: float(fraction) for ref, _, fraction in pairs}
    except ValueError as error:
        raise typer.BadParameter(f"--share: {error}; write REF=FRACTION, as valid=0.1") from None
    part, _, date = released.partition("=")
    uri, snapshot = address_and_ref(uri, snapshot)
    parts = split_chains(
        uri,
        Clusters(clusters) if clusters else None,
        shares,
        snapshot=snapshot, seed=seed, released=(part, date) if released else None,
        max_identity=max_identity, allow_similar=allow_similar,
    )  # fmt: skip
    _parts(parts, as_json)
    selection = parts["train"].manifest.config["selection"]
    if not as_json and "strongest_pairs" in selection:
        above = f"{selection['pairs_above']} pairs of chains above identity {max_identity:g}"
        print(
            f"between the parts: {above}" + "; the strongest:" * bool(selection["strongest_pairs"])
        )
        for query, target, identity, aligned, _ in selection["strongest_pairs"]:
            print(f"  {query} {target}: {identity:.0%} over {aligned} residues")


def _parts(parts: dict[str, Any], as_json: bool) -> None:
    rows = {
        ref: {"digest": part.digest, "chains": part.manifest.num_chains}
        for ref, part in parts.items()
    }
    lines = [
        f"{ref} -> {row['digest'][:12]}  {counted(row['chains'], 'chain')}"
        for ref, row in rows.items()
    ]
    _show(as_json, rows, [*lines, "`evofeed snapshots card` says what was left out and why"])


@snapshots.command()
def tag(
    uri: Uri,
    name: Annotated[str, typer.Argument(help="The new ref.")],
    snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """Give a snapshot a permanent name.

    Example: evofeed snapshots tag data/ v1
    """
    from evofeed.store import address_and_ref
    from evofeed.store import tag as put

    uri, snapshot = address_and_ref(uri, snapshot)
    ref = put(uri, name, snapshot)
    _show(as_json, {"name": ref.name, "digest": ref.digest}, [f"{ref.name} -> {ref.digest[:12]}"])


@snapshots.command()
def gc(
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the files.")] = False,
    grace_days: Annotated[float, typer.Option(min=0, help="Keep younger files.")] = 7,
    drop_history: Annotated[
        bool, typer.Option("--drop-history", help="Remove ancestors of refs too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List files that no ref needs; with --delete, remove them.

    Example: evofeed snapshots gc data/ --delete
    """
    from evofeed.store import gc as collect

    report = collect(
        uri, dry_run=not delete, grace=grace_days * 86400, keep_history=not drop_history
    )
    verb = "removed" if delete else "would remove"
    lines = [f"{item.nbytes:>12,}  {item.key}" for item in report.removed]
    lines.append(f"{verb} {len(report.removed)} files, {report.nbytes / 1e6:,.1f} MB")
    lines.append(f"kept {len(report.young)} younger than {grace_days:g} days")
    if report.held:
        lines.append(f"kept {len(report.held)} that a running job may need")
    _show(as_json, report.to_dict(), lines)


@snapshots.command()
def remove(
    uri: Uri,
    chain_ids: Annotated[list[str], typer.Argument(help="Chains to leave out.")],
    ref: Moved = "main",
    as_json: Json = False,
) -> None:
    """Make a new snapshot without some chains.

    Example: evofeed snapshots remove data/ 1abc_A 2xyz_B
    """
    from evofeed.store import remove_chains

    _published(remove_chains(uri, chain_ids, ref=ref), as_json)


@snapshots.command()
def merge(
    uri: Uri,
    other: Annotated[str, typer.Argument(help="The dataset to take chains from.")],
    ref: Moved = "main",
    as_json: Json = False,
) -> None:
    """Copy the chains of another dataset into a new snapshot.

    Example: evofeed snapshots merge data/ more/
    """
    from evofeed.store import merge as join

    with count_bar("copying", as_json, "MB", 1e6) as progress:
        snapshot = join(uri, other, ref=ref, progress=progress)
    _published(snapshot, as_json)


@snapshots.command()
def compact(uri: Uri, ref: Moved = "main", as_json: Json = False) -> None:
    """Make a new snapshot in which small or half-empty shards are joined.

    Example: evofeed snapshots compact data/
    """
    from evofeed.store import compact as rewrite

    _published(rewrite(uri, ref=ref), as_json)


@snapshots.command()
def copy(
    uri: Uri,
    target: Annotated[str, typer.Argument(help="Folder or s3:// address to copy to.")],
    snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """Copy a snapshot to another folder or bucket.

    Example: evofeed snapshots copy http://host:8461/v1/datasets/pdb data/
    """
    from evofeed.store import address_and_ref, copy_dataset

    uri, snapshot = address_and_ref(uri, snapshot)
    with count_bar("copying", as_json, "MB", 1e6) as progress:
        copied = copy_dataset(uri, target, snapshot=snapshot, progress=progress)
    _published(copied, as_json)


def _published(snapshot: Any, as_json: bool) -> None:
    manifest = snapshot.manifest
    values = {
        "digest": snapshot.digest,
        "chains": manifest.num_chains,
        "shards": len(manifest.shards),
        "dropped": list(manifest.dropped),
    }
    lines = [f"dropped {item.get('chain_id')}: {item.get('reason')}" for item in manifest.dropped]
    lines.append(
        f"{snapshot.digest[:12]}: {counted(manifest.num_chains, 'chain')} in "
        f"{counted(len(manifest.shards), 'shard')}"
    )
    _show(as_json, values, lines)

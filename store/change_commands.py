"""The commands of `evofeed snapshots` that make, move or remove something."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evofeed.base.options import Json
from evofeed.store.command_parts import Moved, RefName, Uri, show

changes = typer.Typer()


@changes.command()
def select(
    uri: Uri,
    into: Annotated[str, typer.Argument(help="The ref to make or move.")],
    snapshot: RefName = "main",
    released_from: Annotated[str, typer.Option(help="ISO date, the first day.")] = "",
    released_before: Annotated[str, typer.Option(help="ISO date, the first day too late.")] = "",
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
    """The chains that pass limits, under a name of their own; the others with their reasons.

    Example: evofeed snapshots select data/ train --max-resolution 9 --released-before 2018-04-30
    """
    from evofeed.store import Dataset, Selection, address_and_ref, select_chains
    from evofeed.store.likeness import Clusters

    limits = Selection(
        released_from=released_from,
        released_before=released_before,
        max_resolution=max_resolution,
        min_residues=min_residues,
        max_residues=max_residues,
        min_alignments=min_alignments,
        max_aa_fraction=max_aa_fraction,
        with_structure=with_structure,
    )
    others = [Dataset.open(*address_and_ref(text)) for text in apart_from or ()]
    known = Clusters(clusters) if clusters else None
    made = select_chains(uri, into, limits, snapshot=snapshot, apart_from=others, clusters=known)
    _parts({into: made}, as_json)


@changes.command()
def split(
    uri: Uri,
    clusters: Annotated[str, typer.Option(help="`evofeed cluster` writes them.")] = "",
    share: Annotated[list[str] | None, typer.Option(help="REF=FRACTION, repeatable.")] = None,
    released: Annotated[str, typer.Option(help="REF=ISO-DATE: chains from that day on.")] = "",
    max_identity: Annotated[
        float, typer.Option(min=0, max=1, help="Between parts; 1 searches nothing.")
    ] = 0.4,
    allow_similar: Annotated[
        bool, typer.Option("--allow-similar", help="Publish although chains are more alike.")
    ] = False,
    snapshot: RefName = "main",
    seed: Annotated[int, typer.Option(help="Of the order of the clusters.")] = 0,
    as_json: Json = False,
) -> None:
    """Divide a snapshot so that no cluster is in two parts; the rest is called `train`.

    The parts are then searched against each other with mmseqs: the strongest pairs are printed and
    written to the card, and nothing is published if chains of two parts are more alike than
    --max-identity over 40 residues.

    Example: evofeed snapshots split data/ --clusters clusters.tsv --share valid=0.1

    Example: evofeed snapshots split data/ --clusters clusters.tsv --released valid=2021-09-30
    """
    from evofeed.store import split_chains
    from evofeed.store.likeness import Clusters

    shares = {name: float(value) for name, _, value in (s.partition("=") for s in share or ())}
    part, _, date = released.partition("=")
    made = split_chains(
        uri,
        Clusters(clusters) if clusters else None,
        shares,
        snapshot=snapshot,
        seed=seed,
        released=(part, date) if released else None,
        max_identity=max_identity,
        allow_similar=allow_similar,
    )
    _parts(made, as_json)
    found = made["train"].manifest.config["selection"]
    if not as_json and "strongest_pairs" in found:
        above = f"{found['pairs_above']} pairs above {max_identity:g}"
        print(f"between the parts: {above}; the strongest:" if found["strongest_pairs"] else above)
        for query, target, identity, aligned, _ in found["strongest_pairs"]:
            print(f"  {query} {target}: {identity:.0%} over {aligned} residues")


def _parts(parts: dict[str, Any], as_json: bool) -> None:
    rows = {
        name: {"digest": made.digest, "chains": made.manifest.num_chains}
        for name, made in parts.items()
    }
    lines = [
        f"{name} -> {row['digest'][:12]}  {row['chains']:,} chains" for name, row in rows.items()
    ]
    show(as_json, rows, [*lines, "`evofeed snapshots card` says what was left out and why"])


@changes.command()
def tag(
    uri: Uri,
    name: Annotated[str, typer.Argument(help="The new ref.")],
    snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """Give a snapshot a name that stays.

    Example: evofeed snapshots tag data/ v1
    """
    from evofeed.store import tag as put

    ref = put(uri, name, snapshot)
    show(as_json, {"name": ref.name, "digest": ref.digest}, [f"{ref.name} -> {ref.digest[:12]}"])


@changes.command()
def gc(
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete", help="Really remove.")] = False,
    grace_days: Annotated[float, typer.Option(min=0, help="Younger files stay.")] = 7,
    drop_history: Annotated[
        bool, typer.Option("--drop-history", help="Ancestors of refs may go too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say which files no ref needs; with --delete, remove them.

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
    show(as_json, report.to_dict(), lines)


@changes.command()
def remove(
    uri: Uri,
    chain_ids: Annotated[list[str], typer.Argument(help="Chains to leave out.")],
    ref: Moved = "main",
    as_json: Json = False,
) -> None:
    """A new snapshot without some chains.

    Example: evofeed snapshots remove data/ 1abc_A 2xyz_B
    """
    from evofeed.store import remove_chains

    _published(remove_chains(uri, chain_ids, ref=ref), as_json)


@changes.command()
def merge(
    uri: Uri,
    other: Annotated[str, typer.Argument(help="The dataset to take chains from.")],
    ref: Moved = "main",
    as_json: Json = False,
) -> None:
    """A new snapshot with the chains of another dataset, which are copied.

    Example: evofeed snapshots merge data/ more/
    """
    from evofeed.store import merge as join

    _published(join(uri, other, ref=ref), as_json)


@changes.command()
def compact(uri: Uri, ref: Moved = "main", as_json: Json = False) -> None:
    """A new snapshot in which small or half-empty shards are joined.

    Example: evofeed snapshots compact data/
    """
    from evofeed.store import compact as rewrite

    _published(rewrite(uri, ref=ref), as_json)


@changes.command()
def copy(
    uri: Uri,
    target: Annotated[str, typer.Argument(help="Folder or s3:// address to copy to.")],
    snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """Copy a snapshot to another place.

    Example: evofeed snapshots copy http://host:8461/v1/datasets/pdb data/
    """
    from evofeed.store import copy_dataset

    _published(copy_dataset(uri, target, snapshot=snapshot), as_json)


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
        f"{snapshot.digest[:12]}: {manifest.num_chains:,} chains in {len(manifest.shards):,} shards"
    )
    show(as_json, values, lines)

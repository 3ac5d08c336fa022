"""`evofeed shards`: what is in a dataset's shards."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evofeed.base.options import Json, group
from evofeed.store.command_parts import RefName, Uri, show, wrong_call

shards = group(
    "What is in a dataset's shards: inspect, cat, verify.\n\n"
    "Example: evofeed shards inspect data/ 1abc_A"
)


@shards.command()
def inspect(
    uri: Uri,
    chain: Annotated[str, typer.Argument(metavar="[CHAIN]", help="One chain.")] = "",
    snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """The shards of a snapshot, or the columns of one chain: codec and bytes.

    Example: evofeed shards inspect data/ 1abc_A
    """
    from evofeed.store import Dataset

    with wrong_call():
        dataset = Dataset.open(uri, snapshot)
        if not chain:
            entries = [entry.to_dict() for entry in dataset.manifest.shards]
            lines = [f"{e['name']}  {e['chains']:>6,} chains  {e['nbytes']:>12,}" for e in entries]
            return show(as_json, entries, lines)
        row = dataset.row(chain)
        decoder = dataset.spans.decoder(row, dataset.spans.read_span(row))
    values: dict[str, Any] = {
        "chain_id": chain,
        "shard": dataset.spans.key(row),
        "offset": int(dataset.spans.offset[row]),
        "nbytes": int(dataset.spans.nbytes[row]),
        "dims": decoder.dims,
        "columns": {
            name: {
                "codec": column.codec.name,
                "compression": column.compression.name,
                "nbytes": len(column.payload),
            }
            for name, column in decoder.columns.items()
        },
    }
    lines = [f"{chain}  {values['dims']}  {values['shard']} @ {values['offset']:,}"]
    for name, column in values["columns"].items():
        lines.append(f"{name:<28} {column['codec']:<12} {column['nbytes']:>12,}")
    return show(as_json, values, lines)


@shards.command()
def cat(
    uri: Uri,
    chain: Annotated[str, typer.Argument(help="The chain.")],
    out: Annotated[str, typer.Option(help="Write every array to this .npz.")] = "",
    snapshot: RefName = "main",
    as_json: Json = False,
) -> None:
    """One chain: its fields in words, or all its arrays as an npz.

    Example: evofeed shards cat data/ 1abc_A --out 1abc_A.npz
    """
    from pathlib import Path

    from evofeed.protein.chain_files import to_npz
    from evofeed.protein.features import RECORD
    from evofeed.store import Dataset
    from evofeed.store.encode import meta_of

    with wrong_call():
        record = Dataset.open(uri, snapshot)[chain]
    if out:
        Path(out).write_bytes(to_npz(record))
    values: dict[str, Any] = {"chain_id": chain, **meta_of(record)}
    for feature in RECORD:
        array = getattr(record, feature.name)
        if feature.dtype != "str" and array is not None:
            values[feature.name] = f"{array.dtype.name}{list(array.shape)}"
    lines = [f"{name:<28} {value}" for name, value in values.items()]
    show(as_json, values, [*lines, *([f"wrote {out}"] if out else [])])


@shards.command("verify")
def verify_files(
    files: Annotated[list[str], typer.Argument(help="Shard files.")], as_json: Json = False
) -> None:
    """Check shard files by themselves: name, Arrow structure, checksums, every record.

    Example: evofeed shards verify data/shards/*.arrow
    """
    from pathlib import Path

    from evofeed.base.errors import StoreError
    from evofeed.store.dataset import check_shard
    from evofeed.store.storage import read_file

    faults = []
    for file in map(Path, files):
        try:
            check_shard(read_file(file), file.name, file.stem, str(file))
        except StoreError as error:
            faults.append(error)
    values = {"shards": len(files), "faults": [fault.to_dict() for fault in faults]}
    lines = [str(fault) for fault in faults]
    show(as_json, values, [*lines, f"{len(files)} shards, {len(faults)} faults"])
    raise typer.Exit(1 if faults else 0)

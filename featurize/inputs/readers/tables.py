"""Alignments as tables: Boltz's CSV and Chai's `.aligned.pqt`."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Final

from evofeed.base.errors import MsaError
from evofeed.featurize.formats.reading import FileRef, file_ref, plain, read_head
from evofeed.featurize.inputs.sources import is_alignment

SUFFIXES: Final = (".csv", ".aligned.pqt")
_HEAD_BYTES: Final = 4096
_UNPAIRED_KEYS: Final = ("", "-1", "nan")


def alignment_file(path: Path) -> FileRef | None:
    """A file as an alignment to read; None for a CSV with other columns."""
    name = plain(path.name)
    if name.endswith(".aligned.pqt"):
        return FileRef(f"{stem(path)}.a3m", str(path), part="table pqt")
    if name.endswith(".csv"):
        columns = read_head(file_ref(path), _HEAD_BYTES).partition(b"\n")[0].strip().split(b",")
        if sorted(columns) != [b"key", b"sequence"]:
            return None
        return FileRef(f"{stem(path)}.a3m", str(path), part="table csv")
    return file_ref(path)


def stem(path: Path) -> str:
    """Name of an alignment's file without suffixes."""
    name = plain(path.name)
    return next((name.removesuffix(s) for s in (*SUFFIXES, ".a3m") if name.endswith(s)), name)


def alignment_named(name: str, named_in: Path) -> FileRef:
    """An alignment named in another file, relative to that file's folder, to a parent of it, or to
    the working directory, as in Boltz's examples.

    If no such file exists, the first path: the chain then fails with an error that names it.
    """
    name = name.replace("\0", "?")
    paths = [folder / name for folder in (*named_in.absolute().parents, Path())]
    path = next((path for path in paths if _is_file(path)), paths[0])
    ref = (alignment_file(path) if _is_file(path) else None) or file_ref(path)
    if is_alignment(ref.plain_name):
        return ref
    packed = ref.name.removeprefix(ref.plain_name)  # an alignment under any name
    return ref._replace(name=f"{ref.plain_name}.a3m{packed}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # e.g. a name that is too long
        return False


def chai_name(sequence: str) -> str:
    """Name of Chai's file with the alignment of a sequence."""
    return f"{hashlib.sha256(sequence.upper().encode()).hexdigest()}.aligned.pqt"


def rows_of(data: bytes, argument: str, path: str) -> bytes:
    """The `sequence` column of a table as a3m, rows without a residue left out.

    Args:
        argument: `csv` or `pqt`; with ` paired` only the query and the rows with a pairing key:
            Boltz's `key` (a taxon id; empty or -1 without) or Chai's `pairing_key`.

    Raises:
        MsaError: not such a table, or a column is missing.
    """
    try:
        kind, _, paired = argument.partition(" ")
        if kind == "csv":
            table = list(csv.DictReader(io.StringIO(data.decode("utf-8", "replace"))))
            rows = [row["sequence"] or "" for row in table]
            keys = [row["key"] for row in table] if paired else []
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            names = ["sequence", "pairing_key"] if paired else ["sequence"]
            columns = pq.read_table(pa.BufferReader(data), columns=names)
            rows = columns["sequence"].to_pylist()
            keys = columns["pairing_key"].to_pylist() if paired else []
    except (KeyError, IndexError, OSError, ValueError, csv.Error) as error:
        raise MsaError(f"no table of aligned sequences: {error!r}", path=path) from None
    if paired:
        texts = [("" if key is None else str(key).strip()) for key in keys]
        keyed = list(zip(texts, rows, strict=True))[1:]
        pairs = [(k, row) for k, row in keyed if k not in _UNPAIRED_KEYS and row.strip("-")]
        return "".join(f">{k}\n{row}\n" for k, row in [("query", rows[0]), *pairs]).encode()
    rows = [row for row in rows if row.strip("-")]
    return "".join(f">row{number}\n{row}\n" for number, row in enumerate(rows)).encode()

"""Databases of hh-suite: alignments glued into `<db>.ffdata`, found by `<db>.ffindex`."""

from __future__ import annotations

from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import FileRef, file_ref, read_bytes, read_head
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource


def index_files(folder: Path) -> list[Path]:
    """The indices of databases of alignments in a folder; profiles and column states are none."""
    other = ("_hhm.ffindex", "_cs219.ffindex")
    return sorted(path for path in folder.glob("*.ffindex") if not path.name.endswith(other))


def from_ffindex(index: Path, beside: SideFiles) -> list[ChainSource]:
    """The entries of a database as chains, each with its alignment.

    Raises:
        InputError: the database is not beside its index, or holds no alignments.
    """
    db = index.with_suffix(".ffdata")
    if index.stem.endswith("_ca3m"):
        raise InputError(
            "alignments in hh-suite's compressed form: write them as a3m with "
            "`a3m_database_extract` first",
            path=str(index),
        )
    if not db.is_file():
        raise InputError(f"its database {db.name} is not beside it", path=str(index))
    if read_head(file_ref(db), 1)[:1] not in (b">", b"#"):
        raise InputError("no database of a3m alignments", path=str(db))
    sources = []
    lines = read_bytes(file_ref(index)).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        name, *numbers = line.split("\t")
        if len(numbers) != 2 or not all(part.isdigit() for part in numbers):
            why = f"expected name, offset and length with tabs between, not {line[:60]!r}"
            raise InputError(why, path=str(index), line=number)
        name = name.removesuffix(".a3m")
        offset, size = map(int, numbers)
        ref = FileRef(f"{name}.a3m", str(db), offset, max(size - 1, 0))  # a NUL ends each
        source = beside.source(name, str(index), alignments=(ref,))
        sources += [source] if source is not None else []
    return sources

"""OpenFold's `alignment_db`: alignment files concatenated in a db, and its JSON index.

Three kinds of index: the sharded one names the db of each chain
(`{"3lrm_A": {"db": "alignment_db_0.db", "files": [["x.a3m", offset, bytes], …]}}`),
the old one is next to its only db and lists files alone, and that of `evofeed search` names
the db of each file and has the sequences, of RNA with `"is_rna": true`
(`{"3lrm_A": {"sequence": "MKV…", "files": [["x.a3m.zst", offset, bytes, "7f.db"], …]}}`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from evofeed.base.errors import InputError
from evofeed.base.files import parse_json
from evofeed.featurize.formats.reading import FileRef, file_ref, paused_gc, read_bytes

SEARCH_INDEX: Final = "search.index"
"""Name of the index of `evofeed search`."""


class DbEntry(NamedTuple):
    """The files of one chain in a db."""

    db: str
    files: tuple[FileRef, ...]
    sequence: str = ""
    description: str = ""
    is_rna: bool = False


def read_index(path: str) -> dict[str, DbEntry]:
    """The chains of an index, sharded or old; each db is in the folder of the index.

    Raises:
        InputError: not such an index, or a db name that points to another folder.
    """
    try:
        chains = parse_json(read_bytes(file_ref(path)))
        chains.items()
    except (ValueError, AttributeError) as error:
        raise InputError(f"not an alignment_db index: {error}", path=path) from None
    folder = Path(path).parent
    default_db = str(folder / (Path(path).name.removesuffix(".index") + ".db"))
    dbs: dict[str, str] = {}
    entries = {}
    with paused_gc():
        while chains:  # an index of all of the PDB takes a gigabyte: values are freed once read
            name, value = chains.popitem()
            entries[name] = _entry(name, value, folder, default_db, path, dbs)
    return dict(reversed(entries.items()))


def _entry(
    name: str, value: Any, folder: Path, default_db: str, path: str, dbs: dict[str, str]
) -> DbEntry:
    try:
        values = value if isinstance(value, dict) else {"files": value}
        db = _db_path(values["db"], folder, dbs) if "db" in values else default_db
        refs = []
        for file, offset, size, *file_db in values["files"]:
            if type(file) is not str or type(offset) is not int or type(size) is not int:
                raise TypeError("a file is [name, offset, bytes]")
            if offset < 0 or size < 0:
                raise ValueError(f"{file} at {offset} with {size} bytes")
            db_path = _db_path(file_db[0], folder, dbs) if file_db else db
            refs.append(FileRef(sys.intern(file), db_path, offset, size))
        sequence, description = (values.get(key, "") for key in ("sequence", "description"))
        if type(sequence) is not str or type(description) is not str:
            raise TypeError("sequence and description are text")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"bad index entry: {error!r}", path=path, item=name) from None
    return DbEntry(db, tuple(refs), sequence, description, values.get("is_rna") is True)


def _db_path(name: str, folder: Path, dbs: dict[str, str]) -> str:
    """Path of a db, one string for all its files."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"db {name!r} is not a plain file name")
    return dbs.setdefault(name, str(folder / name))


def read_ffindex(index: Path) -> Iterator[tuple[str, FileRef]]:
    """Name and file span of each entry of an hh-suite database (`.ffindex`, `.ffdata`).

    Raises:
        InputError: a line is not `name offset length`; names it.
    """
    lines = read_bytes(file_ref(index)).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        name, *numbers = line.split("\t")
        if len(numbers) != 2 or not all(part.isdigit() for part in numbers):
            message = f"expected name, offset and length with tabs between, not {line[:60]!r}"
            raise InputError(message, path=str(index), line=number)
        name = name.removesuffix(".a3m")
        offset, size = map(int, numbers)
        db = str(index.with_suffix(".ffdata"))
        yield name, FileRef(f"{name}.a3m", db, offset, max(size - 1, 0))  # a NUL ends each

"""Templates packed for ColabFold's clients: a small hh-suite database, and structures."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.alignment_db import read_ffindex
from evofeed.featurize.formats.reading import FileRef, file_ref, read_bytes
from evofeed.featurize.records.template_library import TemplateLibrary

_CHAIN: Final = re.compile(r"(?P<pdb_id>[0-9][A-Za-z0-9]{3})_[A-Za-z0-9]+$")


def pack_templates(names: Iterable[str], database: str, mmcif_dir: str) -> bytes:
    """`pdb70_a3m.ffdata`, its index, `_hhm` if it exists, and an mmCIF per entry, as tar.gz.

    Args:
        names: chains, `1abc_A`; other names, and chains that lack a file, are omitted.
        database: prefix of a database of hh-suite, `PREFIX_a3m.ffdata` and `.ffindex`.

    Raises:
        InputError: the database does not exist.
    """
    library = TemplateLibrary(mmcif_dir, FeaturizeConfig())
    chains: list[str] = []
    structures: dict[str, bytes] = {}
    alignments = _index(database, "a3m")
    for name in sorted(set(names)):
        match = _CHAIN.match(name)
        pdb_id = match["pdb_id"].lower() if match else ""
        path = library.find(pdb_id) if match and name in alignments else None
        if path is not None and ".cif" in path.name:
            chains.append(name)
            structures[f"{pdb_id}.cif"] = read_bytes(file_ref(path))
    files: dict[str, bytes] = {}
    for kind, index in (("a3m", alignments), ("hhm", _index(database, "hhm"))):
        indexed = [name for name in chains if name in index]
        if indexed or kind == "a3m":
            files |= _ffindex_files(kind, {name: read_bytes(index[name]) for name in indexed})
    return packed_tar(files | structures)


def packed_tar(files: dict[str, bytes]) -> bytes:
    """A tar.gz of files by name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _ffindex_files(kind: str, entries: dict[str, bytes]) -> dict[str, bytes]:
    """The files of an hh-suite database: entries that end with a NUL, and their index."""
    data, lines, offset = [], [], 0
    for name, entry in entries.items():
        data.append(entry + b"\0")
        lines.append(f"{name}\t{offset}\t{len(entry) + 1}\n")
        offset += len(entry) + 1
    stem = f"pdb70_{kind}"
    return {f"{stem}.ffdata": b"".join(data), f"{stem}.ffindex": "".join(lines).encode()}


def _index(database: str, kind: str) -> dict[str, FileRef]:
    path = Path(f"{database}_{kind}.ffindex")
    if not path.is_file():
        if kind == "hhm":
            return {}
        raise InputError("no such database of hh-suite", path=str(path))
    return _read_index(str(path), path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_index(path: str, mtime_ns: int) -> dict[str, FileRef]:
    return dict(read_ffindex(Path(path)))

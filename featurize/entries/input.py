"""Input files of a job of entries, and their names in reports."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError
from evofeed.base.files import write_atomic
from evofeed.featurize.entries.alignments import alignment_folders, query_of
from evofeed.featurize.formats.alignment_db import SEARCH_INDEX, read_index
from evofeed.featurize.formats.reading import files_below, is_text, plain, read_bytes
from evofeed.featurize.inputs.clusters import read_clusters
from evofeed.featurize.job.options import absolute

_SUFFIXES: Final = (".cif", ".mmcif")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesInput:
    """Paths and options of a job's input files."""

    structures: str
    """Folder of mmCIF files, one such file, or a project's prepared set."""
    components: str
    """`components.cif`."""
    alignments: str = ""
    """Folder of a3m or Stockholm files with a subfolder per query, or a search's output; default of
    a prepared set: its own."""
    templates: str = ""
    """Folder of mmCIF files for the template hits among the alignments."""
    clusters: str = ""
    """File with a cluster per line, of `ENTRY_entity` or of sequences."""
    projects: tuple[str, ...] = ()
    """Projects whose rules are applied; empty: all, of a prepared set its own."""
    conformers: int | None = None
    """Conformers per component; None: 32 for OpenFold3, 1 for Boltz and Protenix."""


Items = list[tuple[str, ...]]
"""Name in reports and files of every item of a job."""


def with_absolute_paths(source: EntriesInput) -> EntriesInput:
    """The input with absolute paths, which must exist: a job may run again in another directory."""
    names = ("structures", "components", "alignments", "templates", "clusters")
    paths: dict[str, Any] = {n: absolute(path) for n in names if (path := getattr(source, n))}
    if missing := [path for path in paths.values() if not Path(path).exists()]:
        raise InputError("no such file or folder", path=missing[0])
    return dataclasses.replace(source, **paths)


def structure_files(path: str) -> list[str]:
    """mmCIF files of a folder and its subfolders, sorted; or the file itself.

    Raises:
        InputError: there is none.
    """
    root = Path(absolute(path))
    paths = [root] if root.is_file() else files_below(root)
    files = [str(p) for p in paths if plain(p.name).lower().endswith(_SUFFIXES) or p.is_dir()]
    if not files:
        raise InputError("no mmCIF file here (.cif, .mmcif, also .gz or .zst)", path=path)
    return files


def failure(name: str, reason: str) -> dict[str, Any]:
    """The entry of a report for an item left out."""
    name, reason = (text.encode(errors="replace").decode() for text in (name, reason))
    return {"chain_id": name, "type": "InputError", "message": reason, "path": None, "line": None}


def utf8_items(items: Items, left_out: list[dict[str, Any]]) -> Items:
    """The items whose names are valid text, as a ledger needs; adds the others to `left_out`."""
    is_utf8 = {item: all(map(is_text, item)) for item in items}
    left_out += [failure(item[0], "not UTF-8: rename it") for item in items if not is_utf8[item]]
    return [item for item in items if is_utf8[item]]


def entry_items(files: Sequence[str], root: str) -> Items:
    """Names of files: the stem, or the path from the root where two files have the same stem."""
    names = [Path(path).name.partition(".")[0] or Path(path).name for path in files]
    counts = Counter(names)
    return [
        (name if counts[name] == 1 else str(Path(path).relative_to(root)), path)
        for name, path in zip(names, files, strict=True)
    ]


def alignment_items(root: str) -> tuple[Items, list[dict[str, Any]]]:
    """Files of every query, and failures of folders that are damaged or repeat a query."""
    names_by_query: dict[str, str] = {}
    items, left_out = [], []
    search_files = None
    if Path(root, SEARCH_INDEX).is_file():
        search_files, root = _write_search_files(Path(root)), f"{root}/msa"
    for files in alignment_folders(root, search_files):
        paths = [Path(file) for file in files]
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        parts = folder.relative_to(root).parts
        stems = [path.stem for path in paths if path.suffix == ".npz"]
        name = "-".join(["alignment", *parts, *stems])
        try:
            earlier = names_by_query.setdefault(query_of(files[0]), name)
        except InputError as error:
            left_out.append(failure(name, str(error)))
            continue
        if earlier == name:
            items.append((name, *files))
        else:
            left_out.append(failure(name, f"{earlier} has an alignment of the same sequence"))
    if not names_by_query:
        raise InputError("no alignment here (.a3m, .sto)", path=root)
    return items, left_out


def _write_search_files(root: Path) -> list[Path]:
    """Writes a search's alignments into `msa/`, a folder per sequence; returns these files only,
    not those of sequences that have left the search."""
    written = set()
    for entry in read_index(str(root / SEARCH_INDEX)).values():
        folder = root / "msa" / hashlib.sha256(entry.sequence.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        for ref in entry.files:
            path, data = folder / ref.plain_name, read_bytes(ref)
            if not path.exists() or path.read_bytes() != data:
                write_atomic(path, data)
            written.add(path)
    return sorted(written)


def cluster_table(path: str) -> dict[str, str]:
    """Cluster of each member, named by the cluster's first member."""
    if not path:
        return {}
    groups = read_clusters(path)
    return {name: members[0] for members in groups for name in (m.upper() for m in members)}

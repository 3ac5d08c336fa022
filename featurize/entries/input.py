"""Files of a job of entries: what is found where, and what each is called in reports."""

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
    """Where the files of a job of entries are."""

    structures: str
    """Folder of mmCIF files, or one; or a project's prepared set."""
    components: str
    """`components.cif`."""
    alignments: str = ""
    """Folder of a3m or Stockholm files, one folder below it a query, or of a search; of a prepared
    set its own."""
    templates: str = ""
    """Folder of mmCIF files of the entries that hits among the alignments name."""
    clusters: str = ""
    """A cluster a line, of `ENTRY_entity` or of sequences."""
    projects: tuple[str, ...] = ()
    """Whose rules are applied; none named: all that this evofeed has, of a prepared set its own."""
    conformers: int | None = None
    """In the pool of every component; None: 32 for OpenFold3, 1 for Boltz and Protenix."""


Items = list[tuple[str, ...]]
"""Name in reports, and files, of everything that a job works on."""


def from_anywhere(source: EntriesInput) -> EntriesInput:
    """The same input by whole paths, which are there: a job is run again from wherever one is."""
    names = ("structures", "components", "alignments", "templates", "clusters")
    paths: dict[str, Any] = {n: absolute(path) for n in names if (path := getattr(source, n))}
    if missing := [path for path in paths.values() if not Path(path).exists()]:
        raise InputError("no such file or folder", path=missing[0])
    return dataclasses.replace(source, **paths)


def structure_files(place: str) -> list[str]:
    """mmCIF files of a folder and the folders in it, sorted; or the one file.

    Raises:
        InputError: there is none.
    """
    root = Path(absolute(place))
    paths = [root] if root.is_file() else files_below(root)
    found = [str(p) for p in paths if plain(p.name).lower().endswith(_SUFFIXES) or p.is_dir()]
    if not found:
        raise InputError("no mmCIF file here (.cif, .mmcif, also .gz or .zst)", path=place)
    return found


def failure(name: str, why: str) -> dict[str, Any]:
    """What a report says of something left out."""
    name, why = (text.encode(errors="replace").decode() for text in (name, why))
    return {"chain_id": name, "type": "InputError", "message": why, "path": None, "line": None}


def with_text(items: Items, left_out: list[dict[str, Any]]) -> Items:
    """The items whose names a ledger can keep; the others are left out."""
    good = {item: all(map(is_text, item)) for item in items}
    left_out += [failure(item[0], "not UTF-8: rename it") for item in items if not good[item]]
    return [item for item in items if good[item]]


def entry_items(files: Sequence[str], root: str) -> Items:
    """A name a file: its own, or its path from the root where two have the same."""
    names = [Path(path).name.partition(".")[0] or Path(path).name for path in files]
    counts = Counter(names)
    return [
        (name if counts[name] == 1 else str(Path(path).relative_to(root)), path)
        for name, path in zip(names, files, strict=True)
    ]


def alignment_items(root: str) -> tuple[Items, list[dict[str, Any]]]:
    """Files of every query, and folders left out because an earlier one has the same query."""
    first: dict[str, str] = {}
    items, left_out = [], []
    found = None
    if Path(root, SEARCH_INDEX).is_file():
        found, root = _files_of_search(Path(root)), f"{root}/msa"
    for files in alignment_folders(root, found):
        folder = one if (one := Path(files[0])).is_dir() else one.parent
        parts = folder.relative_to(root).parts
        stems = [one.stem for one in map(Path, files) if one.suffix == ".npz"]
        name = "-".join(["alignment", *parts, *stems])
        try:
            earlier = first.setdefault(query_of(files[0]), name)
        except InputError as error:
            left_out.append(failure(name, str(error)))
            continue
        if earlier == name:
            items.append((name, *files))
        else:
            left_out.append(failure(name, f"{earlier} has an alignment of the same sequence"))
    if not first:
        raise InputError("no alignment here (.a3m, .sto)", path=root)
    return items, left_out


def _files_of_search(root: Path) -> list[Path]:
    """What `evofeed search` found, as files in `msa/`, a folder each sequence; not what is there
    of sequences that are not in the search any more."""
    found = set()
    for entry in read_index(str(root / SEARCH_INDEX)).values():
        home = root / "msa" / hashlib.sha256(entry.sequence.encode()).hexdigest()[:16]
        home.mkdir(parents=True, exist_ok=True)
        for ref in entry.files:
            path, data = home / ref.plain_name, read_bytes(ref)
            if not path.exists() or path.read_bytes() != data:
                write_atomic(path, data)
            found.add(path)
    return sorted(found)


def cluster_table(path: str) -> dict[str, str]:
    """Cluster of each member, by the cluster's first one."""
    if not path:
        return {}
    groups = read_clusters(path)
    return {name: members[0] for members in groups for name in (m.upper() for m in members)}

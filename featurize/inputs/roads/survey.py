"""What is in a folder that holds no chains: for the message that says so."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from evofeed.featurize.formats.reading import plain
from evofeed.featurize.structures.structure_files import SUFFIXES

_MOST_FILES: Final = 20_000
_DEEPEST: Final = 4
_SHOWN: Final = 5
_ADVICE: Final = {
    ".pkl": "features.pkl: evofeed snapshots convert --trusted-pickle makes a dataset of them",
    ".npz": "arrays: give the alignments and structures they were made of",
    ".tar": "unpack the .tar first",
    ".tgz": "unpack the .tgz first",
    ".zip": "unpack the .zip first",
    ".mmtf": "MMTF: download the entries as mmCIF",
    ".arrow": "shards: this is a dataset already",
    ".dbtype": "an mmseqs database: it is searched with --search-db, or `mmseqs result2msa` it",
    ".hmm": "profiles: give the alignments they were made of",
    ".m8": "hits without alignments: give the .a3m of that search",
}
_READ: Final = (".a3m", ".sto", ".hhr", *SUFFIXES, ".fasta", ".fa", ".faa", ".pqt", ".ffindex")
_EXPECTED: Final = (
    "expected alignments/<chain>/ folders, an alignment_db with its .index, or .a3m, .fasta or "
    "structure files (INPUTS.md lists all layouts)"
)


def nothing_here(root: Path) -> str:
    """Why a folder is no input: what it holds by kind, and what to do about it."""
    seen: Counter[str] = Counter()
    homes: dict[str, str] = {}
    for path in _files(root):
        kind = Path(plain(path.name)).suffix.lower() or path.name
        seen[kind] += 1
        homes.setdefault(kind, str(path.parent))
    if not seen:
        return f"nothing here looks like chains, it has no file: {_EXPECTED}"
    kinds = [f"{count} {kind}" for kind, count in seen.most_common(_SHOWN)]
    more = f" and {len(seen) - _SHOWN} other kinds" if len(seen) > _SHOWN else ""
    advice = [text for kind, text in _ADVICE.items() if kind in seen]
    below = next((homes[kind] for kind in _READ if homes.get(kind, str(root)) != str(root)), None)
    if below is not None:
        advice.insert(0, f"files that could be read are further down: give {below} or its parent")
    return f"nothing here looks like chains, it has {', '.join(kinds)}{more}: " + "; ".join(
        [*advice, _EXPECTED]
    )


def no_input(path: Path) -> str:
    """Why a file is no input, and what to do about it."""
    kind = Path(plain(path.name)).suffix.lower()
    advice = _ADVICE.get(kind, "")
    return "; ".join(filter(None, [f"no file of chains: {_EXPECTED}", advice]))


def _files(root: Path) -> Iterator[Path]:
    """Files down to some depth, as many as make a picture."""
    count = 0
    depth = len(root.parts)
    for folder, below, names in os.walk(root):
        if len(Path(folder).parts) - depth >= _DEEPEST:
            below.clear()
        below.sort()
        for name in sorted(names):
            yield Path(folder) / name
            count += 1
            if count >= _MOST_FILES:
                return

"""Sequence similarity by a search with mmseqs, groups of connected sequences, and the overlap of
two sets of chains: a test set that overlaps the training set measures memory, not learning."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from evofeed.base.errors import InputError
from evofeed.base.files import scratch_folder
from evofeed.store.storage import open_regular

MIN_ALIGNED: Final = 40
"""Aligned residues from which a pair counts, or the full length of a shorter sequence."""
_COLUMNS: Final = "query,target,fident,alnlen,qcov,tcov"
_MAX_OUTPUT: Final = 400
"""Characters of mmseqs' output in an error message."""


class Pair(NamedTuple):
    """Two similar sequences: identity of the aligned part, its length in columns, and the
    aligned share of the shorter sequence."""

    query: str
    target: str
    identity: float
    aligned: int
    coverage: float


def similar_pairs(
    queries: Mapping[str, str],
    targets: Mapping[str, str],
    identity: float,
    *,
    threads: int = 0,
    deadline: float = 86_400.0,
) -> list[Pair]:
    """Pairs at or above an identity, over `MIN_ALIGNED` residues or a full shorter sequence.

    Args:
        targets: sequences by name; the same object for all against all.
        threads: of mmseqs; 0 is one per usable core.

    Returns:
        Pairs of different names, the highest identity first.

    Raises:
        InputError: mmseqs is not on the PATH, fails, or takes too long.
    """
    if not queries or not targets:
        return []
    with scratch_folder("evofeed-likeness-") as folder:
        # Numbers for names: mmseqs cuts names at the first space, and rewrites some.
        first = _write(folder / "queries.fasta", queries)
        second = first if targets is queries else _write(folder / "targets.fasta", targets)
        options = ["--format-output", _COLUMNS, "--min-seq-id", str(identity), "-s", "7.5"]
        # All hits of a query: a family may have more than mmseqs' default of 300.
        options += ["--max-seqs", str(max(300, len(targets))), "-e", "10"]
        options += ["--threads", str(threads or len(os.sched_getaffinity(0)))]
        _mmseqs(["easy-search", first, second, "hits.m8", "tmp", *options], folder, deadline)
        lines = (folder / "hits.m8").read_text().splitlines()
    names, others = list(queries), list(targets)
    pairs = []
    for line in lines:
        query, target, fident, length, *coverages = line.split()
        ids = names[int(query)], others[int(target)]
        pair = Pair(*ids, float(fident), int(length), max(map(float, coverages)))
        if pair.query != pair.target and (pair.aligned >= MIN_ALIGNED or pair.coverage >= 0.8):
            pairs.append(pair)
    return sorted(pairs, key=lambda pair: (-pair.identity, -pair.aligned, pair.query, pair.target))


def _write(path: Path, sequences: Mapping[str, str]) -> str:
    path.write_text("".join(f">{n}\n{s}\n" for n, s in enumerate(sequences.values())))
    return path.name


def _mmseqs(arguments: list[str], folder: Path, deadline: float) -> None:
    program = shutil.which("mmseqs")
    if program is None:
        raise InputError("comparing sequences needs mmseqs, which is not on the PATH: install it")
    process = subprocess.Popen(
        [program, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # mmseqs is shell scripts that start mmseqs
    )
    try:
        output, _ = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise InputError(f"mmseqs took longer than {deadline:g} s") from None
        raise
    if process.returncode:
        tail = output.decode("utf-8", "replace").strip()[-_MAX_OUTPUT:]
        raise InputError(f"mmseqs ended with {process.returncode}: {tail}")


def connected(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Connected components of the graph of pairs, each a sorted list of names."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for a, b in pairs:
        parent[root(a)] = root(b)
    groups: dict[str, list[str]] = {}
    for name in sorted(parent):
        groups.setdefault(root(name), []).append(name)
    return sorted(groups.values())


_MAX_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Overlap:
    """Chains that two sets have in common.

    Attributes:
        shared: chains of the first set, each with a chain of the second that is the
            same or in the same cluster.
        unclustered: chains of both sets that are in no cluster: their similarity is unknown.
    """

    shared: tuple[tuple[str, str], ...]
    unclustered: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.shared or self.unclustered)


class Clusters:
    """Sequence clusters of a file with one cluster a line, or of mmseqs' `_cluster.tsv`.

    Ids are compared without case, and a window `1abc_A.v0` counts as its chain.

    Args:
        closed: `path` is canonical, and refused if a part of it is a link by now.

    Raises:
        InputError: the file cannot be read, or is too large for a file of clusters.
    """

    def __init__(self, path: str | Path, *, closed: bool = False) -> None:
        self.path = str(path).removeprefix("file://")
        self._of: dict[str, set[int]] = {}
        try:
            with os.fdopen(
                open_regular(Path(self.path), self.path if closed else None), "rb"
            ) as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise InputError(f"above {_MAX_BYTES} bytes: not a cluster file", path=self.path)
            groups = parse_clusters(data, self.path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"{reason}; give a file of clusters", path=self.path) from None
        for number, members in enumerate(groups):
            for chain_id in members:
                self._of.setdefault(fold_id(chain_id), set()).add(number)

    def of(self, chain_id: str) -> set[int]:
        """The clusters a chain is in, by number; none if it is in no cluster."""
        return self._of.get(fold_id(chain_id), set())


def overlap(
    first: Iterable[str], second: Iterable[str], clusters: Clusters | None = None
) -> Overlap:
    """Chains that two sets share.

    Args:
        clusters: at a sequence identity of your choice; without, only the same chain counts.
    """
    first, second = list(first), list(second)
    by_id = {fold_id(chain_id): chain_id for chain_id in second}
    by_cluster: dict[int, str] = {}
    if clusters is not None:
        by_cluster = {number: name for name in second for number in clusters.of(name)}
    shared = []
    for chain_id in first:
        match = by_id.get(fold_id(chain_id))
        if match is None and clusters is not None:
            numbers = clusters.of(chain_id) & by_cluster.keys()
            match = by_cluster[min(numbers)] if numbers else None
        if match is not None:
            shared.append((chain_id, match))
    unknown = [] if clusters is None else [c for c in [*first, *second] if not clusters.of(c)]
    return Overlap(tuple(shared), tuple(unknown))


def parse_clusters(data: bytes, path: str) -> list[list[str]]:
    """The clusters of a file, each a list of ids without repeats.

    The format is inferred from the content. mmseqs writes `representative TAB member`, a line
    a member, and each representative is a member of its own cluster. In all other files
    (OpenFold's, RCSB's) a line is a cluster, with spaces between its ids.

    Raises:
        InputError: the file is not text.
    """
    text = data.decode(errors="replace")
    if "\0" in text or "\ufffd" in text:
        raise InputError("not text; a file of clusters has a line of ids for each", path=path)
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    pairs: dict[str, dict[str, None]] = {}
    for first, *rest in lines:
        pairs.setdefault(first, {}).update(dict.fromkeys(rest))
    if all(len(line) == 2 for line in lines) and all(rep in pairs[rep] for rep in pairs):
        return [list(members) for members in pairs.values()]
    return [list(dict.fromkeys(line)) for line in lines]


def fold_id(chain_id: str) -> str:
    """The form of an id for comparisons: upper case, a window `1abc_A.v0` as its chain."""
    stem, dot, window = chain_id.rpartition(".v")
    return (stem if dot and window.isdigit() else chain_id).upper()

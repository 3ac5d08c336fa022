"""How alike sequences are, by a search with mmseqs, and which are alike by way of others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from evofeed.base.errors import InputError

MIN_ALIGNED: Final = 40
"""Residues over which a likeness counts, or the whole of a shorter sequence."""
_COLUMNS: Final = "query,target,fident,alnlen,qcov,tcov"
_SAID: Final = 400


class Pair(NamedTuple):
    """Two sequences that are alike: identity of the aligned part, its length in columns, and the
    share of the shorter sequence that is aligned."""

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
    """Pairs at or above an identity, over `MIN_ALIGNED` residues or a whole shorter sequence.

    Args:
        queries: sequences by name.
        targets: sequences by name; the same object for all against all.
        identity: from 0 to 1.
        threads: of mmseqs; 0 is one per usable core.
        deadline: seconds it may take.

    Returns:
        The strongest first; none of a name with itself.

    Raises:
        InputError: mmseqs is not on the PATH, fails, or takes too long.
    """
    if not queries or not targets:
        return []
    with tempfile.TemporaryDirectory(prefix="evofeed-likeness-") as folder:
        # Numbers for names: mmseqs reads names up to the first space, and some in its own way.
        first = _write(Path(folder, "queries.fasta"), queries)
        second = first if targets is queries else _write(Path(folder, "targets.fasta"), targets)
        options = ["--format-output", _COLUMNS, "--min-seq-id", str(identity), "-s", "7.5"]
        # As many hits as there are: a family may have more than mmseqs' 300.
        options += ["--max-seqs", str(max(300, len(targets))), "-e", "10"]
        options += ["--threads", str(threads or len(os.sched_getaffinity(0)))]
        _mmseqs(["easy-search", first, second, "found.m8", "tmp", *options], folder, deadline)
        lines = Path(folder, "found.m8").read_text().splitlines()
    names, others = list(queries), list(targets)
    pairs = []
    for line in lines:
        query, target, fident, length, *covered = line.split()
        named = names[int(query)], others[int(target)]
        pair = Pair(*named, float(fident), int(length), max(map(float, covered)))
        if pair.query != pair.target and (pair.aligned >= MIN_ALIGNED or pair.coverage >= 0.8):
            pairs.append(pair)
    return sorted(pairs, key=lambda pair: (-pair.identity, -pair.aligned, pair.query, pair.target))


def _write(path: Path, sequences: Mapping[str, str]) -> str:
    path.write_text("".join(f">{n}\n{s}\n" for n, s in enumerate(sequences.values())))
    return path.name


def _mmseqs(arguments: list[str], folder: str, deadline: float) -> None:
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
        said, _ = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise InputError(f"mmseqs took longer than {deadline:g} s") from None
        raise
    if process.returncode:
        tail = said.decode("utf-8", "replace").strip()[-_SAID:]
        raise InputError(f"mmseqs ended with {process.returncode}: {tail}")


def connected(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Names in groups, each sorted: those of a pair, or of a chain of pairs, are in one."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for one, other in pairs:
        parent[root(one)] = root(other)
    groups: dict[str, list[str]] = {}
    for name in sorted(parent):
        groups.setdefault(root(name), []).append(name)
    return sorted(groups.values())

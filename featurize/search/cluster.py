"""Clusters of sequences, for sampling weights and for splits that share no family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.base.files import write_atomic
from evofeed.featurize.search.programs import Scratch
from evofeed.featurize.search.sequences import read_sequences
from evofeed.store.inner import similar_pairs


def cluster_sequences(
    fasta: str,
    out: str,
    *,
    identity: float = 0.4,
    coverage: float = 0.8,
    linear: bool = False,
    threads: int = 1,
    deadline: float = 86_400.0,
    problems: list[InputError] | None = None,
) -> tuple[int, int]:
    """Cluster the sequences of a FASTA file or folder into mmseqs' two-column table.

    All are searched against all, and what is alike is in one cluster, directly or by way of others:
    a fragment is with what it is a part of, and a fusion joins the families of its parts.
    AF2 weighs chains by the size of their cluster at 40 % identity (SI 1.2.5).

    Args:
        fasta: the sequences.
        out: the table, `representative TAB member` a line, which `--clusters` reads.
        identity: from which two sequences are alike, 0 to 1.
        coverage: least part of the shorter sequence that is aligned.
        linear: mmseqs' linclust, in linear time, for millions of sequences; it finds less,
            and clusters of it do not keep fragments and relatives together.
        threads: of mmseqs.
        deadline: seconds mmseqs may take.
        problems: gets records that are no chains; without it, the first is raised.

    Returns:
        How many sequences and how many clusters.

    Raises:
        InputError: no sequences, or mmseqs is not on the PATH or fails.
    """
    chains = {chain.chain_id: chain.sequence for chain in read_sequences(fasta, problems)}
    if linear:
        limits = ("--min-seq-id", str(identity), "-c", str(coverage), "--threads", str(threads))
        groups = _linclust(chains, limits, deadline)
    else:
        found = similar_pairs(chains, chains, identity, threads=threads, deadline=deadline)
        pairs = [(p.query, p.target) for p in found if p.coverage >= coverage]
        groups = connected(list(chains), pairs)
    if sorted(name for group in groups for name in group) != sorted(chains):
        raise InputError(f"mmseqs lost some of {len(chains)} sequences", path=fasta)
    lines = (f"{group[0]}\t{member}\n" for group in groups for member in group)
    write_atomic(Path(out), "".join(lines))
    return len(chains), len(groups)


def connected(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Names in groups, each sorted: those of a pair, or of a chain of pairs, are in one."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for one, other in pairs:
        parent[root(one)] = root(other)
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(root(name), []).append(name)
    return sorted(groups.values())


def _linclust(chains: dict[str, str], limits: Sequence[str], deadline: float) -> list[list[str]]:
    with Scratch(deadline) as folder:
        text = "".join(f">{name}\n{sequence}\n" for name, sequence in chains.items())
        query = folder.file("all.fasta", text.encode())
        folder.run("mmseqs", "easy-linclust", query, "found", "tmp", *limits)
        table = folder.result("found_cluster.tsv", "mmseqs")
    groups: dict[str, list[str]] = {}
    for line in table.decode().splitlines():
        first, member = line.split("\t")
        groups.setdefault(first, []).append(member)
    return sorted(sorted(group) for group in groups.values())

"""Clusters of sequences with mmseqs, for sampling weights and for splits that share no family."""

from __future__ import annotations

from pathlib import Path

from evofeed.errors import InputError
from evofeed.featurize.search.fasta_search import read_sequences
from evofeed.featurize.search.programs import Scratch
from evofeed.files import write_atomic


def cluster_sequences(
    fasta: str,
    out: str,
    *,
    identity: float = 0.4,
    coverage: float = 0.8,
    linear: bool = False,
    threads: int = 1,
    deadline: float = 86_400.0,
) -> tuple[int, int]:
    """Cluster the sequences of a FASTA file or folder into mmseqs' two-column table.

    AF2 weighs chains by the size of their cluster at 40 % identity (SI 1.2.5).

    Args:
        fasta: the sequences.
        out: the table, `representative TAB member` a line, which `--clusters` reads.
        identity: least identity within a cluster, 0 to 1.
        coverage: least part of both sequences that is aligned.
        linear: linclust, in linear time, for millions of sequences; it finds less.
        threads: of mmseqs.
        deadline: seconds mmseqs may take.

    Returns:
        How many sequences and how many clusters.

    Raises:
        InputError: no sequences, or mmseqs is not on the PATH or fails.
    """
    chains = read_sequences(fasta)
    program = "easy-linclust" if linear else "easy-cluster"
    with Scratch(deadline) as place:
        text = "".join(f">{chain.chain_id}\n{chain.sequence}\n" for chain in chains)
        limits = ["--min-seq-id", str(identity), "-c", str(coverage), "--threads", str(threads)]
        query = place.file("all.fasta", text.encode())
        place.run("mmseqs", program, query, "found", "tmp", *limits)
        table = place.result("found_cluster.tsv", "mmseqs")
    pairs = [line.split("\t") for line in table.decode().splitlines()]
    members = sorted(pair[1] for pair in pairs)
    if members != sorted(chain.chain_id for chain in chains):
        raise InputError(f"mmseqs put {len(members)} of {len(chains)} sequences into clusters")
    lines = (f"{first}\t{member}\n" for first, member in sorted(map(tuple, pairs)))
    write_atomic(Path(out), "".join(lines))
    return len(members), len({pair[0] for pair in pairs})

"""Sequences of FASTA files to search, and clusters of similar sequences."""

from __future__ import annotations

from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.base.files import write_atomic
from evofeed.featurize.inputs.discovery import fasta_files, unique_chains
from evofeed.featurize.inputs.layouts import from_fasta
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.store.inner import connected, similar_pairs


def cluster_sequences(
    fasta: str,
    out: str,
    *,
    identity: float = 0.4,
    coverage: float = 0.8,
    threads: int = 1,
    deadline: float = 86_400.0,
    problems: list[InputError] | None = None,
) -> tuple[int, int]:
    """Cluster the sequences of a FASTA file or folder into mmseqs' two-column table.

    An all-against-all search, and single linkage: similar sequences share a cluster, directly or
    through others. A fragment is with its parent, and a fusion joins the families of its parts.
    AF2 weighs chains by the size of their cluster at 40 % identity (SI 1.2.5).

    Args:
        out: the table, `representative TAB member` per line, which `--clusters` reads.
        coverage: minimum aligned part of the shorter sequence.
        problems: gets records that are not chains; without it, the first is raised.

    Returns:
        Numbers of sequences and of clusters.

    Raises:
        InputError: no sequences, or mmseqs is not on the PATH or fails.
    """
    chains = {chain.chain_id: chain.sequence for chain in read_sequences(fasta, problems)}
    pairs = similar_pairs(chains, chains, identity, threads=threads, deadline=deadline)
    groups = connected(chains, ((p.query, p.target) for p in pairs if p.coverage >= coverage))
    lines = (f"{group[0]}\t{member}\n" for group in groups for member in group)
    write_atomic(Path(out), "".join(lines))
    return len(chains), len(groups)


def read_sequences(
    fasta: str, problems: list[InputError] | None = None, *, rna: bool = False
) -> list[ChainSource]:
    """The sequences of a FASTA file or of the FASTA files of a folder, as chains.

    Records that are not chains go to `problems`; without it, the first is raised.

    Raises:
        InputError: no such file, not FASTA, or no sequence in it.
    """
    root = Path(fasta)
    if not root.exists():
        raise InputError("no such file or folder", path=fasta)
    files = fasta_files(root) if root.is_dir() else [root]
    faults: list[InputError] = []
    side_files = SideFiles({}, {}, None, None, None, False, faults)
    chains = [chain for path in files for chain in from_fasta(path, side_files, rna=rna)]
    sources = unique_chains(chains, faults, fasta)
    if problems is not None:
        problems += faults
    elif faults:
        raise faults[0]
    if not sources:
        message = "there is no sequence in it" if files else "there is no FASTA file in it"
        raise InputError(message, path=fasta)
    return [
        ChainSource(s.chain_id, sequence=s.sequence, description=s.description) for s in sources
    ]

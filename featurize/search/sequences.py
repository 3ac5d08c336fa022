"""FASTA files -> chains to search."""

from __future__ import annotations

from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.featurize.inputs.discovery import fasta_files, once
from evofeed.featurize.inputs.layouts import from_fasta
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource


def read_sequences(
    fasta: str, problems: list[InputError] | None = None, *, rna: bool = False
) -> list[ChainSource]:
    """The sequences of a FASTA file or of the FASTA files of a folder, as chains.

    Args:
        fasta: the file or folder.
        problems: where records go that are no chains, instead of raising the first.
        rna: take RNA too.

    Raises:
        InputError: not there, no FASTA, or no sequence in it.
    """
    root = Path(fasta)
    if not root.exists():
        raise InputError("no such file or folder", path=fasta)
    files = fasta_files(root) if root.is_dir() else [root]
    faults: list[InputError] = []
    nothing = SideFiles({}, {}, None, None, None, False, faults)
    found = [source for path in files for source in from_fasta(path, nothing, rna=rna)]
    sources = once(found, faults, fasta)
    if problems is not None:
        problems += faults
    elif faults:
        raise faults[0]
    if not sources:
        what = "there is no sequence in it" if files else "there is no FASTA file in it"
        raise InputError(what, path=fasta)
    return [
        ChainSource(s.chain_id, sequence=s.sequence, description=s.description) for s in sources
    ]

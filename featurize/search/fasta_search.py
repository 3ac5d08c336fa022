"""FASTA files and databases -> chains that are ready to featurize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.featurize.inputs.discovery import discover, fasta_files, once
from evofeed.featurize.inputs.layouts import from_fasta
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.search.config import Database, SearchConfig
from evofeed.featurize.search.job import run_search
from evofeed.featurize.search.options import SearchOptions, SearchProgress


def search_fasta(
    fasta: str,
    out_dir: str,
    *,
    search_dbs: Iterable[str | Database],
    template_db: str | Database | None = None,
    template_mmcif_dir: str | None = None,
    config: SearchConfig | None = None,
    options: SearchOptions | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
) -> list[ChainSource]:
    """Search every sequence of a FASTA file, or of a folder of them.

    Args:
        fasta: the sequences.
        out_dir: becomes a data set that `discover` reads.
        search_dbs: databases for the MSA, FASTA or those of hh-suite and mmseqs, as
            `Database.parse` reads them.
        template_db: `pdb_seqres.fasta`, or a database of hhsearch such as PDB70.
        template_mmcif_dir: structures of its hits.
        config: settings of the searches.
        options: where they run.
        progress: called about twice a second.

    Raises:
        InputError: a file is missing or wrong, or a sequence could not be searched.
        JobError: the disk is full, a database changed, no node holds one.
    """
    databases = [_database(db, False) for db in search_dbs]
    databases += [_database(template_db, True)] if template_db is not None else []
    chains = read_sequences(fasta)
    report = run_search(
        chains, out_dir, databases, config=config, options=options, progress=progress
    )
    if report.broken:
        first = report.broken[0]
        more = f" ({len(report.broken)} such)" if len(report.broken) > 1 else ""
        raise InputError(first["message"] + more, item=first["chain_id"])
    return discover(out_dir, template_mmcif_dir=template_mmcif_dir)


def read_sequences(fasta: str, problems: list[InputError] | None = None) -> list[ChainSource]:
    """The sequences of a FASTA file or of the FASTA files of a folder, as chains.

    Args:
        fasta: the file or folder.
        problems: where records go that are no chains, instead of raising the first.

    Raises:
        InputError: not there, no FASTA, or no sequence in it.
    """
    root = Path(fasta)
    if not root.exists():
        raise InputError("no such file or folder", path=fasta)
    files = fasta_files(root) if root.is_dir() else [root]
    faults: list[InputError] = []
    nothing = SideFiles({}, {}, {}, None, None, None, False, faults)
    found = [source for path in files for source in from_fasta(path, nothing)]
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


def _database(given: str | Database, is_template: bool) -> Database:
    return given if isinstance(given, Database) else Database.parse(given, is_template=is_template)

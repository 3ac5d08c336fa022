"""A search of many sequences in many databases, each once, that can be killed at any time.

All of its state is in the cache: it searches what the cache lacks. So it has nothing to lose;
run again, it continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError, JobError
from evofeed.base.files import write_atomic
from evofeed.base.within import Limits, limited_to
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.alignment_db import SEARCH_INDEX
from evofeed.featurize.inputs.sources import ChainSource, role_of
from evofeed.featurize.job.lock import file_lock
from evofeed.featurize.search.cache import SearchCache
from evofeed.featurize.search.cluster import read_sequences
from evofeed.featurize.search.config import Database, SearchConfig, SearchOptions, SearchReport
from evofeed.featurize.search.search import Failures, Progress, Results, Search
from evofeed.featurize.search.searchers import suffix_of
from evofeed.featurize.search.work import DatabaseInfo

REPORT: Final = "report.json"


def search_input(
    fasta: str,
    out_dir: str,
    databases: Sequence[Database],
    *,
    limits: Limits | None = None,
    **settings: Any,
) -> SearchReport:
    """`run_search` of the sequences of a FASTA file or folder, which must lie in `limits`."""
    problems: list[InputError] = []
    with limited_to(limits):
        rna = any(database.is_rna for database in databases)
        chains = read_sequences(fasta, problems, rna=rna)
    return run_search(chains, out_dir, databases, problems=problems, **settings)


def run_search(
    chains: Sequence[ChainSource],
    out_dir: str,
    databases: Sequence[Database],
    *,
    config: SearchConfig | None = None,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    problems: Sequence[InputError] = (),
) -> SearchReport:
    """Search the sequences of chains in databases; returns the report.

    Run it again after a crash or a repair: it searches what the cache lacks.

    Args:
        chains: with `sequence` and `description`; equal sequences are searched once.
        out_dir: gets `search.index`, which `discover` reads, the report and, unless the
            options name another folder, the cache.
        databases: each once; those of templates start from the alignment of the first other one.
        progress: called after each unit and about twice a second.
        problems: records that are not chains, for the report.

    Raises:
        InputError: no chain, two databases of one name, or a database that does not exist.
        JobError: the disk is full, a database changed, or no node holds one.
    """
    config, options = config or SearchConfig(), options or SearchOptions()
    if not chains:
        raise InputError("there is no sequence to search")
    check_databases(databases)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    with _folder_lock(out), contextlib.ExitStack() as stack:
        cache = SearchCache(options.cache_dir or out / "cache")
        stack.callback(cache.close)
        sequences = (chain.sequence for chain in chains)
        search = Search(sequences, databases, config, options, cache, progress)
        stack.callback(search.close)
        results, failures = search.run()
        broken = [*map(_unusable, problems), *_by_chain(chains, failures)]
        report = _report(search, results, broken, len(chains) + len(problems))
        _write_index(out / SEARCH_INDEX, chains, search, results, failures)
        write_atomic(out / REPORT, json.dumps(report.to_dict(), indent=1).encode())
        return report


def _report(
    search: Search, results: Results, broken: list[dict[str, Any]], num_chains: int
) -> SearchReport:
    """The report of a search."""
    lines = [
        f"{hashlib.sha256(sequence.encode()).hexdigest()} {number} {result.sha256}"
        for (sequence, number), result in results.items()
    ]
    databases = []
    for number, (database, info) in enumerate(zip(search.databases, search.infos, strict=True)):
        searched, seconds = search.searched[number], search.spent[number]
        entry = {"name": database.name, "path": database.path, **dataclasses.asdict(info)}
        entry |= {
            "settings": search.config.result_settings(info.kind, database.is_template),
            "rows": search.config.rows_of(database),
            "searched": searched,
            "cache_hits": search.hits[number],
            "worker_seconds": round(seconds, 3),
            "worker_hours_per_1000": round(seconds / max(searched, 1) / 3.6, 4),
        }
        databases.append(entry)
    return SearchReport(
        digest=hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest(),
        num_chains=num_chains,
        num_sequences=len(search.sequences),
        num_broken=len(broken),
        searched=sum(search.searched.values()),
        cache_hits=sum(search.hits.values()),
        lost_workers=search.lost_workers,
        seconds=round(time.monotonic() - search.began, 3),
        databases=tuple(databases),
        broken=tuple(broken),
    )


def check_databases(databases: Sequence[Database]) -> None:
    """Check that databases have distinct names, and that alignments come before templates.

    Raises:
        InputError: two have one name, there is none for alignments, or there are several for
            templates.
    """
    templates = [database for database in databases if database.is_template]
    if all(database.is_template for database in databases):
        raise InputError("there is no database to search: give one with --db")
    if templates and all(database.is_template or database.is_rna for database in databases):
        raise InputError("templates need a database of proteins: give one with --db")
    names: dict[str, Database] = {}
    for database in databases:
        if database.name in names:
            raise InputError(
                f"called {database.name!r} as {names[database.name].path} is: name it, "
                f"--db OTHER={database.path}",
                path=database.path,
            )
        names[database.name] = database
    if len(templates) > 1:
        raise InputError("a second template database: one is searched", path=templates[1].path)


def result_name(database: Database, info: DatabaseInfo) -> str:
    """File name of the result of a database in the index, as in an alignment_db."""
    suffix = suffix_of(info.kind, database.is_template)
    if database.is_template and info.kind == "fasta":
        return f"hmmsearch_output{suffix}"
    if database.pairs:
        return f"uniprot_hits{suffix}"
    name = f"{database.name}_hits{suffix}"
    # `pdb_hits.sto` and `uniprot_hits.sto` mean something else.
    is_plain = role_of(name, FeaturizeConfig()) in ("a3m", "stockholm", "hhr")
    return name if is_plain else f"search_{name}"


def _unusable(problem: InputError) -> dict[str, Any]:
    """A report entry of a record that is not a chain."""
    error = {"type": type(problem).__name__, "message": str(problem)}
    return {"chain_id": problem.item or problem.path or "?", "database": "", **error}


def _by_chain(chains: Iterable[ChainSource], failures: Failures) -> Iterator[dict[str, Any]]:
    """Report entries of the chains whose sequences failed."""
    for chain in chains:
        if (failure := failures.get(chain.sequence.upper())) is not None:
            yield {"chain_id": chain.chain_id, **failure}


def _write_index(
    path: Path, chains: Iterable[ChainSource], search: Search, results: Results, failures: Failures
) -> None:
    """Write the index: chains that have all results, these as spans of the cache's packs."""
    index: dict[str, Any] = {}
    for chain in chains:
        sequence = chain.sequence.upper()
        if sequence in failures:
            continue
        files = []
        for number, (database, info) in enumerate(zip(search.databases, search.infos, strict=True)):
            if (sequence, number) not in results:  # of another kind of molecule
                continue
            ref = results[sequence, number].ref
            name = f"{result_name(database, info)}.zst"
            files.append([name, ref.offset, ref.size, _link_pack(path, Path(ref.path).resolve())])
        index[chain.chain_id] = {
            "sequence": sequence,
            "description": chain.description,
            "files": files,
            **({"is_rna": True} if search.is_rna(sequence) else {}),
        }
    write_atomic(path, json.dumps(index).encode())


def _link_pack(index: Path, pack: Path) -> str:
    """Link a pack into the index's folder, since an index names files of its folder only."""
    link = index.parent / pack.name
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(pack, index.parent.resolve()))
    return link.name


@contextlib.contextmanager
def _folder_lock(out: Path) -> Iterator[None]:
    """Lock a folder for one search at a time; the lock ends with its process."""
    with file_lock(out / ".lock") as try_lock:
        if not try_lock():
            raise JobError("another search is writing here: wait for it", path=str(out))
        yield

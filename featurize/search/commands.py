"""`evofeed search`: sequences to alignments and template hits, each sequence once."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.counts import counted
from evofeed.base.options import Json, share_bar

if TYPE_CHECKING:
    from evofeed.base.errors import InputError
    from evofeed.featurize.search.config import (
        Database,
        SearchConfig,
        SearchOptions,
        SearchProgress,
        SearchReport,
    )

_SHOWN = 5

RecipeName = Annotated[
    str,
    typer.Option(help="`default`, `af2`, `af2-multimer`, `openproteinset`, `af3`, `colabfold`."),
]


def search(
    fasta: Annotated[str, typer.Argument(metavar="FASTA", help="A FASTA file, or a folder.")],
    out: Annotated[
        str, typer.Argument(metavar="[OUT]", help="Folder for the results; default FASTA.search/.")
    ] = "",
    db: Annotated[
        list[str] | None,
        typer.Option(
            help="[NAME=]PATH[,max_hits=N]: a FASTA file, or the prefix of a database of hh-suite "
            "or mmseqs. Repeatable."
        ),
    ] = None,
    template_db: Annotated[
        str, typer.Option(help="pdb_seqres FASTA (hmmsearch) or PDB70 prefix (hhsearch).")
    ] = "",
    recipe: RecipeName = "default",
    executor: Annotated[str, typer.Option(help="`local` processes or `ray`.")] = "local",
    workers: Annotated[int, typer.Option(min=0, help="Parallel searches; 0: one per core.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads per search.")] = 1,
    ray_address: Annotated[str, typer.Option(help="host:port of a Ray cluster.")] = "",
    cache: Annotated[
        str, typer.Option(help="Folder of results shared between searches; default OUT/cache.")
    ] = "",
    scratch: Annotated[str, typer.Option(help="Folder for temporary files of the programs.")] = "",
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds per call of a program, at most.")
    ] = 7200,
    max_broken: Annotated[
        float, typer.Option(min=0, max=1, help="Exit code 1 if a larger share has no result.")
    ] = 0.05,
    as_json: Json = False,
) -> None:
    """Search every sequence of FASTA in every database.

    Equal sequences are searched once, and never again in the same database with the same
    settings. You can kill it at any time and run it again: it continues. `evofeed featurize
    OUT DATASET` makes a dataset of the results. Exit code 0: done. 1: too many chains
    have no result, or it failed; the message says why. 2: wrong call.

    Example: evofeed search seqs.fasta --db uniref90.fasta --db mgnify=mgy.fa --recipe af2
    """
    if not db:
        raise typer.BadParameter("--db is missing: name a database to search")
    databases, config = read_recipe(recipe, db, template_db, threads=threads)
    from evofeed.featurize.search.config import SearchOptions

    options = SearchOptions(
        executor="ray" if ray_address else executor,
        workers=workers,
        threads=threads,
        ray_address=ray_address,
        cache_dir=cache,
        scratch=scratch,
        deadline=deadline,
    )
    out = out or f"{fasta.rstrip('/')}.search"
    report = _search_with_bar(fasta, out, databases, config, options, as_json)
    print(json.dumps(report.to_dict()) if as_json else "\n".join(_summary(report, out)))
    too_many = report.num_broken > max_broken * report.num_chains
    raise typer.Exit(1 if too_many else 0)


def read_recipe(
    recipe: str, search_db: Sequence[str], template_db: str, **settings: Any
) -> tuple[list[Database], SearchConfig]:
    """The databases and settings of a command line.

    Raises:
        ValueError: an invalid database, an unknown recipe, or a database without a role in it.
    """
    from evofeed.featurize.search.config import Database
    from evofeed.featurize.search.recipes import cook

    databases = [Database.parse(text) for text in search_db]
    databases += [Database.parse(template_db, is_template=True)] if template_db else []
    # Absolute paths, for the programs run in other folders.
    databases = [dataclasses.replace(db, path=os.path.abspath(db.path)) for db in databases]  # noqa: PTH100
    return cook(recipe, databases, **settings)


def _search_with_bar(
    fasta: str, out: str, databases: Sequence[Database], config: SearchConfig,
    options: SearchOptions, quiet: bool,
) -> SearchReport:  # fmt: skip
    """Search with a progress bar on stderr."""
    from evofeed.featurize.job.show import interruptible
    from evofeed.featurize.search.job import search_input

    with interruptible(), search_bar(quiet) as show:
        return search_input(fasta, out, databases, config=config, options=options, progress=show)


@contextmanager
def search_bar(quiet: bool = False) -> Iterator[Callable[[SearchProgress], None]]:
    """A progress bar on stderr for a search; yields its callback."""
    with share_bar("searching", quiet) as show:
        yield lambda progress: show(
            progress.share, f"{progress.searched} searched, {progress.cache_hits} cached"
        )


def _summary(report: SearchReport, out: str) -> list[str]:
    chains = counted(report.num_chains, "chain")
    sequences = counted(report.num_sequences, "sequence")
    lines = [
        f"{chains} with {sequences}: {report.searched} searched, {report.cache_hits} results from "
        f"the cache, {report.seconds:.1f} s"
    ]
    for entry in report.databases:
        hours = entry["worker_hours_per_1000"]
        cost = f", {hours:g} worker hours per 1,000 sequences" if entry["searched"] else ""
        lines.append(f"  {entry['name']}: {entry['program']}, {entry['searched']} searched{cost}")
    for broken in report.broken[:_SHOWN]:
        parts = (broken["chain_id"], broken["database"], broken["message"])
        lines.append("  " + ": ".join(part for part in parts if part))
    if report.num_broken:
        lines.append(f"{counted(report.num_broken, 'chain')} without all results; run it again")
    return [*lines, f"digest {report.digest}", f"report: {Path(out) / 'report.json'}"]


def search_first(
    fasta: str, recipe: str, search_db: Sequence[str], template_db: str, options: Any, as_json: bool
) -> str:
    """Run the search of `evofeed featurize --search-db`; returns the folder of its results."""
    from rich.console import Console

    from evofeed.featurize.search.config import SearchOptions

    databases, config = read_recipe(recipe, search_db, template_db)
    out = f"{fasta.rstrip('/')}.search"
    search_options = SearchOptions(
        executor="ray" if options.cluster else "local",
        workers=options.workers,
        ray_address=options.cluster,
    )
    report = _search_with_bar(fasta, out, databases, config, search_options, as_json)
    if report.broken and not as_json:
        summary = "\n".join(_summary(report, out))
        Console(stderr=True).print(summary, highlight=False, soft_wrap=True)
    if share := options.exceeded_share(report.num_broken, report.num_chains):
        from evofeed.base.errors import JobError

        raise JobError(
            f"{report.num_broken} of {report.num_chains} chains could not be searched, more "
            f"than --max-broken {share} allows, the first: {report.broken[0]['message']}",
            path=fasta,
        )
    return out


def cluster(
    fasta: Annotated[str, typer.Argument(metavar="FASTA", help="A FASTA file, or a folder.")],
    out: Annotated[str, typer.Argument(metavar="TABLE", help="Table to write (tsv).")],
    identity: Annotated[float, typer.Option(min=0, max=1, help="Minimum identity.")] = 0.4,
    coverage: Annotated[float, typer.Option(min=0, max=1, help="Of the shorter sequence.")] = 0.8,
    threads: Annotated[int, typer.Option(min=1, help="Threads of mmseqs.")] = 1,
    as_json: Json = False,
) -> None:
    """Cluster sequences by an all-against-all search with mmseqs, joining similar ones by
    single linkage. For `evofeed featurize --clusters TABLE` and `snapshots split`.

    Example: evofeed cluster proteins.fasta clusters.tsv --identity 0.4
    """
    from evofeed.featurize.search.cluster import cluster_sequences

    if Path(out).is_dir() or not Path(out).parent.is_dir():
        raise typer.BadParameter(f"TABLE must be a file in an existing folder, not {out}")
    problems: list[InputError] = []
    sequences, clusters = cluster_sequences(
        fasta, out, identity=identity, coverage=coverage, threads=threads, problems=problems
    )
    if as_json:
        left_out = [str(problem) for problem in problems]
        result = {"sequences": sequences, "clusters": clusters, "table": out, "left_out": left_out}
        print(json.dumps(result))
        return
    print(f"{sequences} sequences in {clusters} clusters: {out}")
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)

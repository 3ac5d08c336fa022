"""A search of many sequences in many databases: each once, whatever is killed.

What is to be done is what the cache does not have; what is done is in the cache. So a
search has no state of its own to lose: run again, it continues.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.base.files import write_atomic
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.search.cache import SearchCache
from evofeed.featurize.search.config import Database, SearchConfig
from evofeed.featurize.search.folder import INDEX, alone, by_chain, unusable, write_index
from evofeed.featurize.search.options import SearchOptions, SearchReport
from evofeed.featurize.search.search import Progress, Search

REPORT: Final = "report.json"


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
    """Search the sequences of chains in databases; the report, with what was found.

    Run it again after a crash or a repair: what was found stays found, the rest is searched.

    Args:
        chains: with `sequence` and `description`; equal sequences are searched once.
        out_dir: gets `search.index`, which `discover` reads, the report and, unless the
            options name another place, the cache.
        databases: each once; those for templates start from the first other's alignment.
        config: settings of the searches.
        options: where and how many at once.
        progress: called after each unit and about twice a second.
        problems: records that are no chains, for the report.

    Raises:
        InputError: no chain, two databases of one name, or one that is nowhere.
        JobError: the disk is full, a database changed, or no node holds one.
    """
    config, options = config or SearchConfig(), options or SearchOptions()
    if not chains:
        raise InputError("there is no sequence to search")
    check_databases(databases)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    with alone(out), contextlib.ExitStack() as stack:
        cache = SearchCache(options.cache_dir or out / "cache")
        stack.callback(cache.close)
        sequences = (chain.sequence for chain in chains)
        search = Search(sequences, databases, config, options, cache, progress)
        stack.callback(search.close)
        found, broken = search.run()
        problem_entries = [*map(unusable, problems), *by_chain(chains, broken)]
        report = search.report(found, problem_entries, len(chains) + len(problems))
        write_index(out / INDEX, chains, databases, search.infos, found, broken)
        write_atomic(out / REPORT, json.dumps(report.to_dict(), indent=1).encode())
        return report


def check_databases(databases: Sequence[Database]) -> None:
    """Nothing, if every database has a name of its own and something can be found in them.

    Raises:
        InputError: two have one name, or there is none for alignments, or several for templates.
    """
    if all(database.is_template for database in databases):
        raise InputError("there is no database to search: give one with --db")
    names: dict[str, Database] = {}
    for database in databases:
        if database.name in names:
            raise InputError(
                f"called {database.name!r} as {names[database.name].path} is: name it, "
                f"--db OTHER={database.path}",
                path=database.path,
            )
        names[database.name] = database
    templates = [database for database in databases if database.is_template]
    if len(templates) > 1:
        raise InputError("a second template database: one is searched", path=templates[1].path)

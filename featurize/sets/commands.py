"""`evofeed make-set`: from a folder of structures to a training set in one command."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from evofeed.base.counts import counted
from evofeed.base.options import Json


def make_set(
    structures: Annotated[
        str, typer.Argument(metavar="STRUCTURES", help="Folder of mmCIF or PDB files.")
    ],
    out: Annotated[str, typer.Argument(metavar="SET", help="Folder to write the set to.")],
    search_db: Annotated[
        list[str], typer.Option(help="Database, [NAME=]PATH[,max_hits=N]. Repeatable.")
    ],
    template_db: Annotated[str, typer.Option(help="pdb_seqres FASTA or PDB70 prefix.")] = "",
    recipe: Annotated[str, typer.Option(help="Search recipe, see `evofeed search`.")] = "default",
    templates: Annotated[
        str, typer.Option(help="mmCIF files of template hits, if not STRUCTURES.")
    ] = "",
    components: Annotated[
        str, typer.Option(help="The wwPDB's components.cif: prepare whole entries too.")
    ] = "",
    split: Annotated[
        list[str] | None,
        typer.Option(help="date:ISO-DATE, identity:0.4, share:0.05 (of `valid`). Repeatable."),
    ] = None,
    allow_similar: Annotated[
        bool, typer.Option("--allow-similar", help="Publish parts although they are similar.")
    ] = False,
    executor: Annotated[str, typer.Option(help="`local` processes or `ray`.")] = "local",
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    ray_address: Annotated[str, typer.Option(help="host:port of a Ray cluster.")] = "",
    max_broken: Annotated[
        float | None, typer.Option(min=0, max=1, help="Publish nothing if a larger share breaks.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a training set: sequences, alignments, clusters, chains, complexes, entries, parts.

    If anything goes wrong, run it again: it continues. `card/` has a card with plots of
    each part, and what was left out and why. Exit code 0: done. 1: stopped by an error.

    Example: evofeed make-set mmcif/ set/ --search-db uniref90=uniref90.fasta --recipe af2
        --split date:2021-09-30 --split identity:0.4
    """
    from evofeed.featurize.job.options import JobOptions
    from evofeed.featurize.job.show import interruptible
    from evofeed.featurize.search.commands import read_recipe
    from evofeed.featurize.search.config import SearchOptions
    from evofeed.featurize.sets.make import Split
    from evofeed.featurize.sets.make import make_set as make

    databases, config = read_recipe(recipe, search_db, template_db)
    executor = "ray" if ray_address else executor
    search = SearchOptions(executor=executor, workers=workers, ray_address=ray_address)
    job = JobOptions(
        executor=executor, workers=workers, ray_address=ray_address, max_broken=max_broken
    )
    with interruptible():
        result = make(
            structures,
            out,
            databases,
            config,
            templates=templates,
            components=components,
            split=Split.parse(split) if split else None,
            allow_similar=allow_similar,
            search=search,
            job=job,
            quiet=as_json,
        )
    if as_json:
        print(json.dumps(result))
        return
    for name, chains in result["parts"].items():
        print(f"{name}: {counted(chains, 'chain')}")
    print(f"cards: {', '.join(result['cards'])}")

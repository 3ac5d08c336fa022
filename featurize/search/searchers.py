"""A database and sequences -> alignments: which program it takes, what a whole result is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from evofeed.errors import InputError, SearchFailed
from evofeed.featurize.a3m import parse_a3m
from evofeed.featurize.hits import parse_hhr
from evofeed.featurize.queries import query_of
from evofeed.featurize.search import aligned_text, embedded, mmseqs, programs, shards
from evofeed.featurize.search.config import Database, Kind, SearchConfig
from evofeed.featurize.search.programs import Scratch
from evofeed.featurize.stockholm import parse_stockholm

_HHR_ROW: Final = re.compile(rb"^ *[0-9]+ .* \([0-9]+\)\s*$", re.MULTILINE)
"""A hit in the list at the top of an hhr file."""


@dataclass(frozen=True, slots=True)
class Query:
    """A sequence to search, and what the search starts from: an alignment, mmseqs' profile."""

    key: str
    sequence: str
    start: bytes = b""


def kind_of(database: Database) -> Kind:
    """Whose format a database is in.

    Raises:
        InputError: it is not here.
    """
    kind = database.kind
    if kind is None or (kind in ("shards", "part") and database.is_template):
        what, program = (
            ("template", "hh-suite") if database.is_template else ("sequence", "hhblits")
        )
        raise InputError(
            f"no such {what} database (FASTA, {program} or mmseqs)", path=database.path
        )
    return kind


def program_of(kind: Kind, is_template: bool, config: SearchConfig) -> str:
    """The program, its version with it, that searches a kind of database here.

    Raises:
        InputError: it is not on the PATH, or cannot use the GPU that it shall.
    """
    if kind == "mmseqs":
        if config.gpu:
            programs.check_gpu_build()
        return programs.version("mmseqs")
    if kind == "hh":
        return programs.version("hhsearch" if is_template else "hhblits")
    name = "hmmsearch" if is_template else "jackhmmer"
    on_path = config.program == "auto" and programs.on_path(name)
    return programs.version(name) if on_path else f"{name} ({embedded.version()})"


def suffix_of(kind: Kind, is_template: bool) -> str:
    """Suffix of the results of a kind of database."""
    if is_template and kind != "fasta":
        return ".m8" if kind == "mmseqs" else ".hhr"
    return {"fasta": ".sto", "part": ".json"}.get(kind, ".a3m")


def profile_key(key: str) -> str:
    """The name of the profile that a search by mmseqs ended with."""
    return f"{key}:profile"


def search(
    database: Database,
    queries: Sequence[Query],
    config: SearchConfig,
    scratch: Callable[[], Scratch],
    in_hand: Callable[[str], None],
    num_targets: int = 0,
) -> dict[str, bytes | InputError]:
    """The result of every query by its key, or why it has none.

    Args:
        database: where to look.
        queries: what to look for.
        config: settings.
        scratch: makes a folder for one call of a program.
        in_hand: called with the key of each query before it is searched.
        num_targets: sequences in all shards of the database, where this is one of them.

    Raises:
        InputError: the database is not here, or its program.
        JobError: the disk is full.
    """
    kind = kind_of(database)
    if kind == "part" and config.iterations > 1:
        raise InputError(
            "several rounds of jackhmmer need the database whole: join its shards, or search "
            "with one round",
            path=database.path,
        )
    program_of(kind, database.is_template, config)
    if kind == "mmseqs" and len(queries) > 1:
        in_hand("")
        try:
            with scratch() as place:
                return {**_mmseqs(database, queries, config, place)}
        except SearchFailed:
            pass  # one by one, to see whose fault it is
    results: dict[str, bytes | InputError] = {}
    for query in queries:
        in_hand(query.key)
        try:
            with scratch() as place:
                if kind == "mmseqs":
                    results |= _mmseqs(database, [query], config, place)
                    continue
                if kind == "part":
                    data = shards.search_shard(place, query.sequence, database, config, num_targets)
                else:
                    data = _search_one(database, kind, query, config, place)
            results[query.key] = _checked(query, data, kind, database, config)
        except InputError as error:
            results[query.key] = error
    return results


def _mmseqs(
    database: Database, queries: Sequence[Query], config: SearchConfig, place: Scratch
) -> dict[str, bytes]:
    sequences = [query.sequence for query in queries]
    starts = [query.start for query in queries]
    profiles: list[bytes] = []
    if not config.expansion:
        found = mmseqs.mmseqs(place, sequences, database.path, config)
    elif database.is_template:
        found = mmseqs.colabfold_templates(place, sequences, starts, database.path, config)
    elif all(starts):
        found = mmseqs.colabfold_next(place, sequences, starts, database.path, config)
    else:
        found, profiles = mmseqs.colabfold(place, sequences, database.path, config)
    texts = {
        query.key: _checked(query, data, "mmseqs", database, config)
        for query, data in zip(queries, found, strict=True)
    }
    return texts | {profile_key(q.key): p for q, p in zip(queries, profiles, strict=False)}


def _search_one(
    database: Database, kind: Kind, query: Query, config: SearchConfig, place: Scratch
) -> bytes:
    threads, db = config.threads, database.path
    if kind == "hh" and not database.is_template:
        return programs.hhblits(place, query.sequence, db, threads=threads, options=config.hhblits)
    if database.is_template:
        return _templates(database, kind, query, config, place)
    limits = {"e_value": config.e_value, "iterations": config.iterations, "threads": threads}
    if config.program == "auto" and programs.on_path("jackhmmer"):
        return programs.jackhmmer(place, query.sequence, db, **limits)  # type: ignore[arg-type]
    return embedded.jackhmmer(query.sequence, db, **limits)  # type: ignore[arg-type]


def _templates(
    database: Database, kind: Kind, query: Query, config: SearchConfig, place: Scratch
) -> bytes:
    alignment = query.start or f">query\n{query.sequence}\n".encode()
    rows = aligned_text.template_rows(aligned_text.read_any(alignment))
    if kind == "hh":
        a3m = aligned_text.to_a3m(rows)
        return programs.hhsearch(
            place, a3m, database.path, threads=config.threads, options=config.hhsearch
        )
    profile = aligned_text.to_stockholm(rows)
    e_value = config.template_e_value
    if config.program == "auto" and programs.on_path("hmmsearch") and programs.on_path("hmmbuild"):
        return programs.hmmsearch(
            place, profile, database.path, threads=config.threads, e_value=e_value
        )
    return embedded.hmmsearch(profile, database.path, threads=config.threads, e_value=e_value)


def _checked(
    query: Query, data: bytes, kind: Kind, database: Database, config: SearchConfig
) -> bytes:
    """A result that is whole, cut to its number of rows.

    Raises:
        SearchFailed: it was cut short, or is of another sequence.
    """
    try:
        if kind == "part":
            shards.check_shard(data)
            return data
        if kind == "hh" and database.is_template:
            _check_hhr(data)
            return data
        if kind == "fasta" and not data.rstrip().endswith(b"//"):
            raise InputError("it has no end")
        if database.is_template:
            return data
        parse_stockholm(data) if kind == "fasta" else parse_a3m(data)
    except InputError as error:
        message = f"the search program wrote half a result: {error.message}"
        raise SearchFailed(message, path=database.path) from None
    if query_of(data, "stockholm" if kind == "fasta" else "a3m") != query.sequence.upper():
        raise SearchFailed("the result is of another sequence", path=database.path)
    return aligned_text.first_rows(data, config.rows_of(database))


def _check_hhr(data: bytes) -> None:
    """Every hit of the list has its block: hhsearch writes no end mark."""
    top = data.partition(b"\nNo 1")[0]
    _, listed, rows = top.partition(b" No Hit")
    hits, blocks = len(_HHR_ROW.findall(rows)), len(parse_hhr(data))
    if not listed or hits != blocks:
        raise InputError(f"{hits} hits in its list, {blocks} alignments")

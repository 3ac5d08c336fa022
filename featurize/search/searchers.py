"""A database and sequences -> alignments: which program it takes, what a whole result is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from evofeed.base.errors import InputError, SearchFailed
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.hits import parse_hhr
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.queries import query_of
from evofeed.featurize.search import aligned_text, hmmer, programs
from evofeed.featurize.search.config import Database, Kind, SearchConfig
from evofeed.featurize.search.mmseqs import mmseqs
from evofeed.featurize.search.programs import Scratch

_HHR_ROW: Final = re.compile(rb"^ *[0-9]+ .* \([0-9]+\)\s*$", re.MULTILINE)
"""A hit in the list at the top of an hhr file."""

_WRITTEN_AS: Final = {"U": "XC", "O": "XK", "B": "XDN", "J": "XLI", "Z": "XEQ"}
"""What programs write for letters beyond the twenty amino acids."""


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
    if kind is None:
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
        InputError: it is not on the PATH.
    """
    if kind == "mmseqs":
        return programs.version("mmseqs")
    if kind == "hh":
        return programs.version("hhsearch" if is_template else "hhblits")
    name = "nhmmer" if kind == "rna" else "hmmsearch" if is_template else "jackhmmer"
    return f"{name} ({hmmer.version()})"


def suffix_of(kind: Kind, is_template: bool) -> str:
    """Suffix of the results of a kind of database."""
    if is_template and kind != "fasta":
        return ".m8" if kind == "mmseqs" else ".hhr"
    return ".sto" if kind == "fasta" else ".a3m"


def profile_key(key: str) -> str:
    """The name of the profile that a search by mmseqs ended with."""
    return f"{key}:profile"


def search(
    database: Database,
    queries: Sequence[Query],
    config: SearchConfig,
    scratch: Callable[[], Scratch],
    in_hand: Callable[[str], None],
) -> dict[str, bytes | InputError]:
    """The result of every query by its key, or why it has none.

    Args:
        scratch: makes a folder for one call of a program.
        in_hand: called with the key of each query before it is searched.

    Raises:
        InputError: the database is not here, or its program.
        JobError: the disk is full.
    """
    kind = kind_of(database)
    program_of(kind, database.is_template, config)
    if kind == "mmseqs":
        return _together(database, queries, config, scratch, in_hand)
    results: dict[str, bytes | InputError] = {}
    for query in queries:
        in_hand(query.key)
        try:
            with scratch() as folder:
                data = _search_one(database, kind, query, config, folder)
            results[query.key] = _checked(query, data, kind, database, config)
        except InputError as error:
            results[query.key] = error
    return results


def _together(
    database: Database,
    queries: Sequence[Query],
    config: SearchConfig,
    scratch: Callable[[], Scratch],
    in_hand: Callable[[str], None],
) -> dict[str, bytes | InputError]:
    """Queries in one call of mmseqs; where it fails, in halves, down to the one at fault."""
    in_hand(queries[0].key if len(queries) == 1 else "")
    try:
        with scratch() as folder:
            return _mmseqs(database, queries, config, folder)
    except SearchFailed as error:
        if len(queries) == 1:
            return {queries[0].key: error}
    middle = len(queries) // 2
    halves = (queries[:middle], queries[middle:])
    results = (_together(database, half, config, scratch, in_hand) for half in halves)
    return {key: result for half in results for key, result in half.items()}


def _mmseqs(
    database: Database, queries: Sequence[Query], config: SearchConfig, place: Scratch
) -> dict[str, bytes | InputError]:
    sequences = [query.sequence for query in queries]
    starts = [query.start for query in queries]
    found, profiles = mmseqs(place, sequences, starts if all(starts) else (), database, config)
    results: dict[str, bytes | InputError] = {
        profile_key(q.key): p for q, p in zip(queries, profiles, strict=False)
    }
    for query, data in zip(queries, found, strict=True):
        try:
            results[query.key] = _checked(query, data, "mmseqs", database, config)
        except InputError as error:
            results[query.key] = error
    return results


def _search_one(
    database: Database, kind: Kind, query: Query, config: SearchConfig, place: Scratch
) -> bytes:
    threads, db = config.threads, database.path
    if kind == "hh" and not database.is_template:
        return programs.hhblits(
            place, query.sequence, database.paths, threads=threads, options=config.hhblits
        )
    if database.is_template:
        return _templates(database, kind, query, config, place)
    if kind == "rna":
        e_value, max_hits = config.rna_e_value, config.rows_of(database)
        return hmmer.nhmmer(query.sequence, db, threads=threads, e_value=e_value, max_hits=max_hits)
    return hmmer.jackhmmer(
        query.sequence, db, threads=threads, e_value=config.e_value, iterations=config.iterations
    )


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
    return hmmer.hmmsearch(
        profile, database.path, threads=config.threads, e_value=config.template_e_value
    )


def _checked(
    query: Query, data: bytes, kind: Kind, database: Database, config: SearchConfig
) -> bytes:
    """A result that is whole, cut to its number of rows.

    Raises:
        SearchFailed: it was cut short, or is of another sequence.
    """
    try:
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
        raise SearchFailed(message) from None
    written = query_of(data, "stockholm" if kind == "fasta" else "a3m")
    if not _is_same(written, query.sequence.upper()):
        raise SearchFailed("the result is of another sequence")
    if kind == "mmseqs" and written != query.sequence.upper():
        data = aligned_text.with_query(data, query.sequence.upper())
    return aligned_text.first_rows(data, config.rows_of(database))


def _is_same(written: str, asked: str) -> bool:
    """Whether a program's query row is the sequence it was asked for, in the program's alphabet.

    mmseqs writes U, O as X, B as D, J as L, Z as E; which release writes what is its own affair.
    """
    return len(written) == len(asked) and all(
        a == b or a in _WRITTEN_AS.get(b, "") for a, b in zip(written, asked, strict=True)
    )


def _check_hhr(data: bytes) -> None:
    """Every hit of the list has its block: hhsearch writes no end mark."""
    top = data.partition(b"\nNo 1")[0]
    _, listed, rows = top.partition(b" No Hit")
    hits, blocks = len(_HHR_ROW.findall(rows)), len(parse_hhr(data))
    if not listed or hits != blocks:
        raise InputError(f"{hits} hits in its list, {blocks} alignments")

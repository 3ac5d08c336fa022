"""Sequences searched in one database: the program for its kind, and checks of its results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
"""Letters that programs write instead of those beyond the twenty amino acids."""


@dataclass(frozen=True, slots=True)
class Query:
    """A sequence to search, and the alignment or mmseqs profile that its search starts from."""

    key: str
    sequence: str
    start: bytes = b""


def kind_of(database: Database) -> Kind:
    """The kind of a database.

    Raises:
        InputError: it is not on this machine.
    """
    kind = database.kind
    if kind is None:
        role = "template" if database.is_template else "sequence"
        raise InputError(f"no such {role} database (FASTA, hh-suite or mmseqs)", path=database.path)
    return kind


def program_of(kind: Kind, is_template: bool, config: SearchConfig) -> str:
    """Name and version of the program that searches a kind of database on this machine.

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
    """The cache key of the final profile of a search by mmseqs."""
    return f"{key}:profile"


@dataclass(frozen=True, slots=True)
class Searcher:
    """Searches queries in a database.

    Attributes:
        scratch: creates a folder for one call of a program.
        set_current: called with the key of each query before it is searched.
    """

    database: Database
    config: SearchConfig
    scratch: Callable[[], Scratch]
    set_current: Callable[[str], None]

    def search(self, queries: Sequence[Query]) -> dict[str, bytes | InputError]:
        """The result or the error of every query, by its key.

        Raises:
            InputError: the database or its program is not on this machine.
            JobError: the disk is full.
        """
        kind = kind_of(self.database)
        program_of(kind, self.database.is_template, self.config)
        if kind == "mmseqs":
            return self._search_batch(queries)
        results: dict[str, bytes | InputError] = {}
        for query in queries:
            self.set_current(query.key)
            try:
                with self.scratch() as folder:
                    data = self._search_one(kind, query, folder)
            except InputError as error:
                results[query.key] = error
            else:
                results[query.key] = self._checked(query, data, kind)
        return results

    def _search_batch(self, queries: Sequence[Query]) -> dict[str, bytes | InputError]:
        """Search queries in one call of mmseqs; if it fails, in halves, down to the faulty one."""
        self.set_current(queries[0].key if len(queries) == 1 else "")
        starts = [query.start for query in queries]
        try:
            with self.scratch() as folder:
                alignments, profiles = mmseqs(
                    folder,
                    [query.sequence for query in queries],
                    starts if all(starts) else (),
                    self.database,
                    self.config,
                )
        except SearchFailed as error:
            if len(queries) == 1:
                return {queries[0].key: error}
            middle = len(queries) // 2
            return self._search_batch(queries[:middle]) | self._search_batch(queries[middle:])
        results: dict[str, bytes | InputError] = {
            profile_key(q.key): p for q, p in zip(queries, profiles, strict=False)
        }
        for query, data in zip(queries, alignments, strict=True):
            results[query.key] = self._checked(query, data, "mmseqs")
        return results

    def _search_one(self, kind: Kind, query: Query, folder: Scratch) -> bytes:
        config, threads, database = self.config, self.config.threads, self.database
        sequence, db = query.sequence, database.path
        if database.is_template:
            alignment = query.start or f">query\n{sequence}\n".encode()
            rows = aligned_text.template_rows(aligned_text.read_any(alignment))
            if kind == "hh":
                a3m = aligned_text.to_a3m(rows)
                return programs.hhsearch(folder, a3m, db, threads=threads, options=config.hhsearch)
            profile = aligned_text.to_stockholm(rows)
            return hmmer.hmmsearch(profile, db, threads=threads, e_value=config.template_e_value)
        if kind == "hh":
            settings: Any = {"threads": threads, "options": config.hhblits}
            return programs.hhblits(folder, sequence, database.paths, **settings)
        if kind == "rna":
            settings = {"e_value": config.rna_e_value, "max_hits": config.rows_of(database)}
            return hmmer.nhmmer(sequence, db, threads=threads, **settings)
        settings = {"e_value": config.e_value, "iterations": config.iterations}
        return hmmer.jackhmmer(sequence, db, threads=threads, **settings)

    def _checked(self, query: Query, data: bytes, kind: Kind) -> bytes | SearchFailed:
        """A complete result, cut to its maximum of rows; or the error of one that is truncated or
        of another sequence."""
        try:
            if kind == "hh" and self.database.is_template:
                _check_hhr(data)
                return data
            if kind == "fasta" and not data.rstrip().endswith(b"//"):
                raise InputError("it has no end")
            if self.database.is_template:
                return data
            parse_stockholm(data) if kind == "fasta" else parse_a3m(data)
            query_row = query_of(data, "stockholm" if kind == "fasta" else "a3m")
        except InputError as error:
            return SearchFailed(f"the search program wrote half a result: {error.message}")
        if not _is_same(query_row, query.sequence.upper()):
            return SearchFailed("the result is of another sequence")
        if kind == "mmseqs" and query_row != query.sequence.upper():
            data = aligned_text.with_query(data, query.sequence.upper())
        return aligned_text.first_rows(data, self.config.rows_of(self.database))


def _is_same(query_row: str, sequence: str) -> bool:
    """True if a result's query row is the searched sequence, in the program's alphabet.

    mmseqs writes U, O as X, B as D, J as L, Z as E; releases differ in that.
    """
    return len(query_row) == len(sequence) and all(
        a == b or a in _WRITTEN_AS.get(b, "") for a, b in zip(query_row, sequence, strict=True)
    )


def _check_hhr(data: bytes) -> None:
    """Raise InputError unless every listed hit has its block: hhsearch writes no end mark."""
    top = data.partition(b"\nNo 1")[0]
    _, header, rows = top.partition(b" No Hit")
    hits, blocks = len(_HHR_ROW.findall(rows)), len(parse_hhr(data))
    if not header or hits != blocks:
        raise InputError(f"{hits} hits in its list, {blocks} alignments")

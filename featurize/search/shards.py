"""A FASTA database in shards, searched with jackhmmer: the rows that the whole one would give.

E-values grow with what is searched. Those of sequences are for the whole database (`-Z`). Those
of domains are for the number of sequences found, which is known when all shards are done: so
each shard gives all its domains, and they are sifted afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from evofeed.featurize.search import programs
from evofeed.featurize.search.aligned_text import Row, read_rows, to_a3m
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.digests import count_sequences
from evofeed.featurize.search.programs import Scratch

_DOMAIN_E_VALUE: Final = 1e-3
"""jackhmmer's `--incdomE`."""


class _Domain(NamedTuple):
    """A line of jackhmmer's table: E-value and score of the sequence, E-value of the domain."""

    e_value: float
    score: float
    domain_e_value: float


def jackhmmer(
    scratch: Callable[[], Scratch],
    sequence: str,
    database: Database,
    *,
    threads: int,
    e_value: float,
) -> bytes:
    """A3M of a sequence's hits in all shards of a database, the best first."""
    total = count_sequences(database)
    found: list[tuple[_Domain, Row, Row]] = []  # with the query as that shard has it
    num_hits = 0
    for part in database.parts():
        with scratch() as place:
            limits = {"threads": threads, "e_value": e_value, "iterations": 1}
            data = programs.jackhmmer(
                place,
                sequence,
                part.path,
                num_targets=total,
                **limits,  # type: ignore[arg-type]
            )
            domains = _domains(place.result("domains", "jackhmmer"))
        num_hits += len({name.rpartition("/")[0] for name in domains})
        query, *rows = read_rows(data)
        found += [(domains[row.name], query, row) for row in rows if row.name in domains]
    kept = [hit for hit in found if hit[0].domain_e_value * num_hits <= _DOMAIN_E_VALUE]
    kept.sort(key=lambda hit: (hit[0].e_value, -hit[0].score))
    lines = [to_a3m([query, row]).partition(b"\n>")[2] for _, query, row in kept]
    return b"".join([f">query\n{sequence}\n".encode(), *(b">" + line for line in lines)])


def _domains(table: bytes) -> dict[str, _Domain]:
    """The table of domains by the name that their rows have in the alignment."""
    found = {}
    for line in table.decode("utf-8", "replace").splitlines():
        if line and line[0] != "#":
            words = line.split(maxsplit=22)
            name = f"{words[0]}/{words[17]}-{words[18]}"
            found[name] = _Domain(float(words[6]), float(words[7]), float(words[11]))
    return found

"""Alignment parsers in plain Python, a character at a time: the reference of the compiled ones.

Slow and obvious. Tests compare the compiled parsers with these, the benchmark
measures both.
"""

from __future__ import annotations

from collections.abc import Sequence

from evofeed.featurize.formats.species import species_of

Rows = list[tuple[str, str, list[int]]]
"""Header, aligned letters and deletions left of each column, row by row."""


def read_a3m(text: str) -> Rows:
    """Rows of a well-formed a3m file."""
    rows: list[tuple[str, str]] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith(">"):
            rows.append((line[1:], ""))
        elif line and not line.startswith("#"):
            rows[-1] = (rows[-1][0], rows[-1][1] + line)
    return [(name, *_split(letters)) for name, letters in rows]


def _split(letters: str) -> tuple[str, list[int]]:
    aligned, deletions, pending = "", [], 0
    for letter in letters:
        if letter.islower():
            pending += 1
        elif letter != ".":
            aligned += letter
            deletions.append(pending)
            pending = 0
    return aligned, deletions


def read_stockholm(text: str) -> Rows:
    """Rows of a well-formed Stockholm file, over the columns of its first sequence."""
    joined: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith(("#", "//")):
            name, letters = line.split()
            joined[name] = joined.get(name, "") + letters.upper().replace(".", "-")
    query = next(iter(joined.values()))
    rows = []
    for name, letters in joined.items():
        aligned, deletions, pending = "", [], 0
        for letter, of_query in zip(letters, query, strict=True):
            if of_query != "-":
                aligned += letter
                deletions.append(pending)
                pending = 0
            elif letter != "-":
                pending += 1
        rows.append((name, aligned, deletions))
    return rows


def unique_rows(alignments: Sequence[Rows]) -> list[tuple[str, list[int], str, int]]:
    """Different rows of several alignments: letters, deletions, species, alignment."""
    unique: dict[str, tuple[str, list[int], str, int]] = {}
    for source, rows in enumerate(alignments):
        for name, letters, deletions in rows:
            unique.setdefault(letters, (letters, deletions, species_of(name), source))
    return list(unique.values())

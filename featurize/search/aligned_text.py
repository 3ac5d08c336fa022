"""Stockholm and A3M text with all insertions: reading, writing, and pairing of chains.

`parse_a3m` and `parse_stockholm` read what features need. Here rows keep their insertions,
because a template search builds its profile from them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from evofeed.base.errors import MsaError
from evofeed.featurize.formats.a3m import a3m_rows
from evofeed.featurize.formats.species import organism_of
from evofeed.featurize.formats.stockholm import stockholm_rows

_MATCH: Final = re.compile("[^a-z]")
"""A letter or gap in a match column of A3M."""


@dataclass(frozen=True, slots=True)
class Row:
    """One aligned sequence: its name, the rest of its header, its letters and gaps."""

    name: str
    description: str
    letters: str


def read_rows(data: bytes) -> list[Row]:
    """The rows of a Stockholm alignment, blocks joined, gaps written `-`.

    Raises:
        MsaError: no sequence, rows of different width, or no end: it was truncated.
    """
    triples, has_end = stockholm_rows(data)
    rows = [Row(name, header, letters.replace(".", "-")) for name, header, letters in triples]
    if not has_end:
        raise MsaError("the Stockholm alignment has no end: it was cut short")
    if len({len(row.letters) for row in rows}) > 1:
        raise MsaError("rows of different width")
    return rows


def rows_of_a3m(data: bytes) -> list[Row]:
    """The rows of an A3M, with added columns for insertions."""
    records = [(head, letters.replace(".", "")) for head, letters in a3m_rows(data)]
    # Insertions before each match column, and after the last.
    insertions = [_MATCH.split(letters) for _, letters in records]
    if len(set(map(len, insertions))) > 1:
        raise MsaError("rows of different width")
    widths = [max(map(len, column)) for column in zip(*insertions, strict=True)]
    rows = []
    for (head, letters), inserted in zip(records, insertions, strict=True):
        padded = (text.upper().ljust(n, "-") for text, n in zip(inserted, widths, strict=True))
        columns = [*_MATCH.findall(letters), ""]
        name, _, description = head.partition(" ")
        aligned = "".join(a + b for a, b in zip(padded, columns, strict=True))
        rows.append(Row(name, description, aligned))
    return rows


def read_any(data: bytes) -> list[Row]:
    """The rows of a Stockholm or A3M alignment."""
    return read_rows(data) if data.lstrip().startswith(b"# STOCKHOLM") else rows_of_a3m(data)


def join_alignments(texts: Sequence[bytes]) -> bytes:
    """Alignments of one query joined in one A3M; a single one unchanged."""
    return texts[0] if len(texts) == 1 else b"".join(to_a3m(read_any(text)) for text in texts)


def template_rows(rows: list[Row]) -> list[Row]:
    """The rows for a template search: without duplicates and empty columns.

    Rows with the same letters at the query's residues are duplicates, whatever their
    insertions (AF2's `deduplicate_stockholm_msa`, `remove_empty_columns_from_stockholm_msa`).
    """
    query_mask = [letter != "-" for letter in rows[0].letters]
    by_letters: dict[str, Row] = {}
    for row in rows:
        by_letters.setdefault("".join(compress(row.letters, query_mask)), row)
    columns = zip(*(row.letters for row in by_letters.values()), strict=True)
    mask = [any(letter != "-" for letter in column) for column in columns]
    return [
        Row(row.name, row.description, "".join(compress(row.letters, mask)))
        for row in by_letters.values()
    ]


def to_stockholm(rows: list[Row]) -> bytes:
    """Stockholm with the query's residues marked as reference columns, for `hmmbuild --hand`."""
    reference = "".join("." if letter == "-" else "x" for letter in rows[0].letters)
    # Numbers as names: an A3M may repeat names. The model does not depend on them.
    lines = [f"s{number:<11} {row.letters}" for number, row in enumerate(rows)]
    text = ["# STOCKHOLM 1.0", "#=GF ID query", *lines, f"#=GC RF      {reference}", "//", ""]
    return "\n".join(text).encode()


def to_a3m(rows: list[Row]) -> bytes:
    """A3M over the columns where the query has a residue; insertions in lower case."""
    query_mask = [letter != "-" for letter in rows[0].letters]
    parts = []
    for row in rows:
        letters = "".join(
            letter if is_match else letter.lower()
            for letter, is_match in zip(row.letters, query_mask, strict=True)
            if is_match or letter != "-"
        )
        parts.append(f">{f'{row.name} {row.description}'.rstrip()}\n{letters}\n")
    return "".join(parts).encode()


def first_rows(data: bytes, count: int) -> bytes:
    """The first `count` rows of an alignment, the query included; all if it has fewer."""
    if not data.lstrip().startswith(b"# STOCKHOLM"):
        records = data.split(b"\n>", count)
        return data if len(records) <= count else b"\n>".join(records[:count]) + b"\n"
    names: dict[bytes, None] = {}
    for line in data.splitlines():
        if line.strip() and not line.startswith((b"#", b"//")):
            names[line.split(maxsplit=1)[0]] = None
    if len(names) <= count:
        return data
    selected = set(list(names)[:count])
    return b"".join(line for line in data.splitlines(keepends=True) if _is_of(line, selected))


def _is_of(line: bytes, names: set[bytes]) -> bool:
    """True if a Stockholm line is of one of these rows, or of the whole alignment."""
    words = line.split(maxsplit=2)
    if not words or line.startswith((b"//", b"# ", b"#=GF", b"#=GC")):
        return True
    return words[1 if line.startswith((b"#=GS", b"#=GR")) else 0] in names


def with_query(a3m: bytes, sequence: str) -> bytes:
    """An A3M with the sequence of its first row replaced."""
    head, _, rest = a3m.partition(b"\n")
    hits = rest.find(b"\n>")
    return head + b"\n" + sequence.encode() + (rest[hits:] if hits >= 0 else b"\n")


def pair(a3ms: Sequence[bytes], *, complete: bool = False) -> list[bytes]:
    """Rows of chains paired by organism.

    Every chain's alignment has the query first, then hits by similarity. The first row of each
    organism is paired; a chain without a row of it gets a row of gaps. `complete`: only organisms
    that all chains have; else those that two have.

    Returns:
        One A3M per chain, with equal numbers of rows, the queries first.
    """
    tables = []
    ranks: dict[str, int] = {}
    for a3m in a3ms:
        _, *hits = a3m_rows(a3m)
        table: dict[str, tuple[str, str]] = {}
        for rank, (header, letters) in enumerate(hits):
            organism = organism_of(header)
            if organism and organism not in table:
                table[organism] = (header, letters)
                ranks[organism] = ranks.get(organism, 0) + rank
        tables.append(table)
    needed = len(a3ms) if complete else min(2, len(a3ms))
    counts = {name: sum(name in table for table in tables) for name in ranks}
    paired = [name for name in ranks if counts[name] >= needed]
    # Complete pairings first, and of those the ones with the best ranks in all chains.
    paired.sort(key=lambda name: (-counts[name], ranks[name] / counts[name], name))
    return [_paired_rows(a3m, table, paired) for a3m, table in zip(a3ms, tables, strict=True)]


def _paired_rows(a3m: bytes, table: dict[str, tuple[str, str]], paired: Sequence[str]) -> bytes:
    query = a3m_rows(a3m)[0]
    gaps = ("DUMMY", "-" * len(query[1]))
    rows = [query, *(table.get(name, gaps) for name in paired)]
    return "".join(f">{header}\n{letters}\n" for header, letters in rows).encode()

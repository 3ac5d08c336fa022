"""Rows of several alignments put side by side by organism, for the chains of a complex."""

from __future__ import annotations

from collections.abc import Sequence

from evofeed.featurize.formats.species import organism_of


def records_of(a3m: bytes) -> list[tuple[str, str]]:
    """Header and aligned letters of each row of an A3M."""
    rows = []
    for record in a3m.decode("utf-8", "replace").split(">")[1:]:
        header, _, letters = record.partition("\n")
        rows.append((header.strip(), "".join(letters.split())))
    return rows


def pair(a3ms: Sequence[bytes], *, complete: bool = False) -> list[bytes]:
    """The rows of each chain's alignment that have a partner in another's, in one order.

    Of each organism the best row of a chain takes part, which is its first. A chain that has
    none gets a row of gaps.

    Args:
        a3ms: an alignment a chain, the query first, hits by likeness.
        complete: only organisms that all chains have; else those that two have.

    Returns:
        As many A3M texts, with as many rows each, the queries first.
    """
    tables = []
    best: dict[str, int] = {}
    for a3m in a3ms:
        _, *hits = records_of(a3m)
        table: dict[str, tuple[str, str]] = {}
        for rank, (header, letters) in enumerate(hits):
            organism = organism_of(header)
            if organism and organism not in table:
                table[organism] = (header, letters)
                best[organism] = best.get(organism, 0) + rank
        tables.append(table)
    needed = len(a3ms) if complete else min(2, len(a3ms))
    counts = {name: sum(name in table for table in tables) for name in best}
    paired = [name for name in best if counts[name] >= needed]
    # Whole pairings first, and of those the ones that are best in all chains.
    paired.sort(key=lambda name: (-counts[name], best[name] / counts[name], name))
    return [_block(a3m, table, paired) for a3m, table in zip(a3ms, tables, strict=True)]


def _block(a3m: bytes, table: dict[str, tuple[str, str]], paired: Sequence[str]) -> bytes:
    query = records_of(a3m)[0]
    gaps = ("DUMMY", "-" * len(query[1]))
    rows = [query, *(table.get(name, gaps) for name in paired)]
    return "".join(f">{header}\n{letters}\n" for header, letters in rows).encode()

"""Aligned rows of a record as A3M text, with species in the form that other programs read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer, UInt8
from evofeed.protein.alignment import Alignment
from evofeed.protein.chain_files import rows_with_insertions
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import MSA_LETTERS

_ALIGNMENT_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ-", np.uint8)
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MNEMONIC: Final = 5
"""Largest number of letters of a UniProt species name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of an alignment, the query first. N rows, L columns, D cells with deletions.

    A record has only the number of deleted letters; in text they are `x`.
    """

    name: str
    """Name of the source file, without its suffix."""
    letters: UInt8[np.ndarray, "N L"]
    """ASCII, `-` for gaps."""
    deletion_row: Integer[np.ndarray, " D"]
    """Ascending."""
    deletion_column: Integer[np.ndarray, " D"]
    """Ascending within a row: letters were deleted to its left."""
    deletion_count: Integer[np.ndarray, " D"]
    species: tuple[str, ...]
    """Mnemonic or taxon of every row; '' if unknown."""

    def texts(self) -> list[str]:
        """Rows in A3M: columns, and deleted letters before them in lower case."""
        cells = (self.deletion_row, self.deletion_column, self.deletion_count)
        return [row.decode() for row in rows_with_insertions(self.letters, *cells)]

    def a3m(self, codes: Mapping[str, str] | None = None) -> str:
        """The rows as A3M.

        With `codes`, five letters for every species, headers are UniProt's, and rows without a
        species are left out.
        """
        length = self.letters.shape[1]
        parts = []
        for number, text in enumerate(self.texts()):
            code = codes.get(self.species[number], "") if codes and number else ""
            if codes is None or code or not number:
                name = f"tr|R{number:06d}|R{number:06d}_{code}/1-{length}" if code else f"r{number}"
                parts.append(f">{name if number else 'query'}\n{text}\n")
        return "".join(parts)


def rows_of_record(record: ChainRecord, name: str = "msa") -> Rows:
    """All rows of a chain's record."""
    letters = MSA_LETTERS[record.msa]
    letters[0] = np.frombuffer(record.sequence.encode(), np.uint8)
    return Rows(
        name=name,
        letters=letters,
        deletion_row=record.deletion_row,
        deletion_column=record.deletion_column,
        deletion_count=record.deletion_count,
        species=record.msa_species,
    )


def rows_of_alignment(alignment: Alignment, source: str) -> Rows:
    """The rows of an entry's alignment from one source file."""
    rows = alignment.rows_of(source)
    counts = np.diff(alignment.deletion_start)[rows]
    cells = np.concatenate(
        [
            np.zeros(0, np.int64),
            *(np.arange(*alignment.deletion_start[row : row + 2]) for row in rows.tolist()),
        ]
    )
    names = (*alignment.species, "")  # -1 is the last
    return Rows(
        name=source,
        letters=_ALIGNMENT_LETTERS[alignment.letters[alignment.row_letters[rows]]],
        deletion_row=np.repeat(np.arange(len(rows)), counts),
        deletion_column=alignment.deletion_column[cells],
        deletion_count=alignment.deletion_count[cells],
        species=tuple(names[number] for number in alignment.row_species[rows].tolist()),
    )


def concatenated_a3m(tables: Iterable[Rows]) -> str:
    """Alignments of one query one after the other, as A3M with one query."""
    texts = [table.a3m() for table in tables]
    return "".join([*texts[:1], *(text.split("\n", 2)[2] for text in texts[1:])])


def species_codes(tables: Iterable[Rows]) -> dict[str, str]:
    """Code of at most five letters for every species: its mnemonic or its taxon.

    A taxon of six or more digits gets a unique code.
    """
    names = sorted({name for table in tables for name in table.species if name})
    codes = {name: name for name in names if len(name) <= _MNEMONIC}
    number = 0
    for name in names:
        while name not in codes:
            code, rest, number = "", number, number + 1
            for _ in range(_MNEMONIC):
                rest, digit = divmod(rest, len(_DIGITS))
                code = _DIGITS[digit] + code
            if code not in codes.values():
                codes[name] = code
    return codes


def species_numbers(tables: Iterable[Rows]) -> dict[str, int]:
    """A number for every species: its taxon, or a number above all taxa."""
    names = sorted({name for table in tables for name in table.species if name})
    return {name: int(name) if name.isdecimal() else 10**9 + n for n, name in enumerate(names)}

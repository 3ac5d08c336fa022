"""ColabFold's a3m of a complex: one alignment over all its chains, to be split into theirs.

The first line has the lengths of the different chains, a tab, and how often each is in
the complex: `#93,87<TAB>1,1`. The columns are those of each different chain, once. Rows
that are paired have residues in several chains and their headers side by side, with tabs
between; the others have gaps in all chains but one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evofeed.base.errors import MsaError
from evofeed.featurize.formats.reading import file_ref, read_head

_HEAD_BYTES: Final = 4096
_NO_RESIDUE: Final = b"-.abcdefghijklmnopqrstuvwxyz"
_FIRST_LINE: Final = re.compile(rb"#(\d+(?:,\d+)*)\t(\d+(?:,\d+)*)\s*\Z")


@dataclass(frozen=True, slots=True)
class Assembly:
    """The different chains of a complex: how long each is, and how often it is there."""

    lengths: tuple[int, ...]
    copies: tuple[int, ...]

    def __str__(self) -> str:
        chains = zip(self.letters, self.lengths, self.copies, strict=True)
        return ", ".join(f"{copies} x {c} of {n} residues" for c, n, copies in chains)

    @property
    def firsts(self) -> list[int]:
        """Which chain of the whole complex, from 0, is the first copy of each."""
        return list(itertools.accumulate(self.copies[:-1], initial=0))

    @property
    def letters(self) -> list[str]:
        """Chain ids: those of the first copies in a complex named A, B, C, ..."""
        return [chain_letter(first) for first in self.firsts]


def assembly_of(text: bytes) -> Assembly | None:
    """What the first line of an a3m says of a complex; None if it says nothing."""
    found = _FIRST_LINE.match(text.partition(b"\n")[0].rstrip())
    if found is None:
        return None
    lengths, copies = (tuple(map(int, numbers.split(b","))) for numbers in found.groups())
    return Assembly(lengths, copies) if len(lengths) == len(copies) and min(lengths) else None


def assembly_in(path: Path) -> Assembly | None:
    """As `assembly_of`, of a file that need not be read whole."""
    return assembly_of(read_head(file_ref(path), _HEAD_BYTES))


def rows_of(data: bytes, argument: str, path: str, *, paired: bool = False) -> bytes:
    """The rows of one chain: its columns of every row that has a residue in them.

    Letters inserted between two chains count to the second, as ColabFold reads them.

    Args:
        argument: which chain, from 0, in the order of the first line.
        paired: only the query and rows in which another chain has residues, too, with the row's
            number in the file for a header: that of its partners.

    Raises:
        MsaError: the first line says no such chain, or a row has not its columns.
    """
    wanted = int(argument)
    kept: list[bytes] = []
    for number, header, pieces, present in _split_rows(data, wanted, path):
        is_pair = sum(present) > 1
        if not present[wanted] or (paired and kept and not is_pair):
            continue
        name = _own_header(header, wanted, len(present)) if is_pair else header
        name = b"%d" % number if paired else name.rstrip(b"\r")
        kept.append(b">%s\n%s\n" % (name, pieces[wanted]))
    return b"".join(kept)


def _split_rows(
    data: bytes, wanted: int, path: str
) -> Iterator[tuple[int, bytes, tuple[bytes, ...], list[bool]]]:
    """Number, header, each chain's letters and who has residues, of every row."""
    data = data.rstrip(b"\0")
    assembly = assembly_of(data)
    if assembly is None or wanted >= len(assembly.lengths):
        raise MsaError(f"its first line names no chain {wanted + 1} of a complex", path=path)
    pieces = b"".join(rb"((?:[a-z.]*+[A-Z-]){%d})" % length for length in assembly.lengths)
    columns = re.compile(pieces + rb"[a-z.]*\Z")
    line = 1
    for number, record in enumerate(data.split(b"\n>")[1:]):
        line += 1
        header, _, body = record.partition(b"\n")
        row = columns.match(b"".join(body.split()))
        if row is None:
            raise MsaError(
                f"a row without the {sum(assembly.lengths)} columns of residues and gaps that the "
                f"first line announces ({assembly})",
                path=path,
                line=line,
            )
        found = row.groups()
        yield number, header, found, [bool(piece.translate(None, _NO_RESIDUE)) for piece in found]
        line += record.count(b"\n")


def chain_letter(number: int) -> str:
    """A, B, ..., Z, AA, AB, ... by number from 0."""
    letters = ""
    while number >= 0:
        number, rest = divmod(number, 26)
        letters = chr(ord("A") + rest) + letters
        number -= 1
    return letters


def _own_header(header: bytes, wanted: int, chains: int) -> bytes:
    """A chain's header of a paired row; each may hold tabs, all the same number."""
    fields = header.split(b"\t")
    own, rest = divmod(len(fields), chains)
    return b"\t".join(fields if rest else fields[own * wanted : own * (wanted + 1)])

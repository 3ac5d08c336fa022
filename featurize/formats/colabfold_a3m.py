"""ColabFold's a3m of a complex: one alignment over all its chains, to be split by chain.

The first line has the lengths of the different chains, a tab, and the copies of each in
the complex: `#93,87<TAB>1,1`. The columns are those of each different chain, once. Paired
rows have residues in several chains and the headers of all of them, joined by tabs; the
others have gaps in all chains but one.
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
    """Length and copies of each different chain of a complex."""

    lengths: tuple[int, ...]
    copies: tuple[int, ...]

    def __str__(self) -> str:
        chains = zip(self.letters, self.lengths, self.copies, strict=True)
        return ", ".join(f"{copies} x {c} of {n} residues" for c, n, copies in chains)

    @property
    def firsts(self) -> list[int]:
        """Index in the complex, from 0, of the first copy of each different chain."""
        return list(itertools.accumulate(self.copies[:-1], initial=0))

    @property
    def letters(self) -> list[str]:
        """Chain ids: those of the first copies in a complex named A, B, C, ..."""
        return [chain_letter(first) for first in self.firsts]


def assembly_of(text: bytes) -> Assembly | None:
    """The complex that the first line of an a3m describes; None if it describes none."""
    match = _FIRST_LINE.match(text.partition(b"\n")[0].rstrip())
    if match is None:
        return None
    lengths, copies = (tuple(map(int, numbers.split(b","))) for numbers in match.groups())
    return Assembly(lengths, copies) if len(lengths) == len(copies) and min(lengths) else None


def assembly_in(path: Path) -> Assembly | None:
    """As `assembly_of`, for a file, of which only the head is read."""
    return assembly_of(read_head(file_ref(path), _HEAD_BYTES))


def rows_of(data: bytes, argument: str, path: str, *, paired: bool = False) -> bytes:
    """The rows of one chain: its columns of every row that has a residue in them.

    Letters inserted between two chains count to the second, as ColabFold reads them.

    Args:
        argument: index of the chain, from 0, in the order of the first line.
        paired: only the query and rows in which another chain has residues, too. The header is
            then the row's number in the file, the same for its partners in other chains.

    Raises:
        MsaError: the first line has no such chain, or a row lacks some of its columns.
    """
    chain = int(argument)
    rows: list[bytes] = []
    for number, header, pieces, present in _split_rows(data, chain, path):
        is_pair = sum(present) > 1
        if not present[chain] or (paired and rows and not is_pair):
            continue
        name = _chain_header(header, chain, len(present)) if is_pair else header
        name = b"%d" % number if paired else name.rstrip(b"\r")
        rows.append(b">%s\n%s\n" % (name, pieces[chain]))
    return b"".join(rows)


def _split_rows(
    data: bytes, chain: int, path: str
) -> Iterator[tuple[int, bytes, tuple[bytes, ...], list[bool]]]:
    """Number, header, letters by chain and whether each chain has residues, of every row."""
    data = data.rstrip(b"\0")
    assembly = assembly_of(data)
    if assembly is None or chain >= len(assembly.lengths):
        raise MsaError(f"its first line names no chain {chain + 1} of a complex", path=path)
    groups = b"".join(rb"((?:[a-z.]*+[A-Z-]){%d})" % length for length in assembly.lengths)
    columns = re.compile(groups + rb"[a-z.]*\Z")
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
        pieces = row.groups()
        yield number, header, pieces, [bool(piece.translate(None, _NO_RESIDUE)) for piece in pieces]
        line += record.count(b"\n")


def chain_letter(number: int) -> str:
    """Chain id A, B, ..., Z, AA, AB, ... by number from 0."""
    letters = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        letters = chr(ord("A") + letter) + letters
        number -= 1
    return letters


def _chain_header(header: bytes, chain: int, num_chains: int) -> bytes:
    """One chain's header of a paired row; headers may hold tabs, all the same number."""
    fields = header.split(b"\t")
    size, remainder = divmod(len(fields), num_chains)
    return b"\t".join(fields if remainder else fields[size * chain : size * (chain + 1)])

"""What clients of the ColabFold protocol send, and the files of their results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from evofeed.errors import InputError
from evofeed.featurize import search

_LETTERS: Final = re.compile(r"[A-Za-z]+")


def parse_query(text: str, most: int) -> tuple[list[str], list[str]]:
    """Names and sequences of a FASTA text; a bare sequence is called 101.

    Raises:
        InputError: none, too many, a name twice, or letters that are none.
    """
    text = text if text.lstrip().startswith(">") else f">101\n{text}"
    names, sequences = [], []
    for record in text.split(">")[1:]:
        head, _, body = record.partition("\n")
        sequence = "".join(body.split()).upper()
        if not _LETTERS.fullmatch(sequence):
            raise InputError("a sequence has letters A to Z only", item=head.strip()[:40])
        names.append((head.split() or [""])[0])
        sequences.append(sequence)
    if not names or len(names) > most or len(set(names)) < len(names):
        raise InputError(f"want 1 to {most} sequences, each with a name of its own")
    return names, sequences


def as_a3m(data: bytes) -> bytes:
    """A result as A3M, whatever program wrote it."""
    return data if data.startswith(b">") else search.to_a3m(search.read_any(data))


def hits_of(name: str, table: bytes) -> bytes:
    """A table of template hits under the name that the client gave the query."""
    lines = (line.partition(b"\t")[2] for line in table.splitlines())
    return b"".join(name.encode() + b"\t" + line + b"\n" for line in lines)


def blocks_of(names: Sequence[str], a3ms: Sequence[bytes]) -> bytes:
    """Alignments behind each other, each begun by its query's name and ended by a NUL."""
    blocks = (
        f">{name}\n".encode() + a3m.partition(b"\n")[2]
        for name, a3m in zip(names, a3ms, strict=True)
    )
    return b"".join(block.rstrip(b"\n") + b"\n\0" for block in blocks)

"""FASTA: text -> sequences and their headers."""

from __future__ import annotations

from dataclasses import dataclass

from evofeed.errors import InputError
from evofeed.featurize.config import InputCaps


@dataclass(frozen=True, slots=True)
class FastaRecord:
    """One sequence: its header without '>', its letters A-Z, its line in the file."""

    description: str
    sequence: str
    line: int = 0

    @property
    def name(self) -> str:
        """First word of the header."""
        return (self.description.split(maxsplit=1) or [""])[0]


def parse_fasta(data: bytes, *, path: str = "", caps: InputCaps | None = None) -> list[FastaRecord]:
    """The records of a FASTA file, letters upper-cased, a final `*` dropped.

    Raises:
        InputError: residues before a header, an empty sequence, or a character
            that is no letter; names the line.
    """
    caps = caps or InputCaps()
    heads: list[tuple[str, int]] = []
    parts: list[list[str]] = []
    for number, raw in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == ">":
            heads.append((line[1:], number))
            parts.append([])
        elif not parts:
            raise InputError("residues before the first '>' header", path=path or None, line=number)
        else:
            parts[-1].append(line)
    return [
        FastaRecord(head, _letters("".join(part), path, number, caps), number)
        for (head, number), part in zip(heads, parts, strict=True)
    ]


def _letters(text: str, path: str, line: int, caps: InputCaps) -> str:
    sequence = text.upper().removesuffix("*")
    if not sequence:
        raise InputError("a header without residues", path=path or None, line=line)
    if len(sequence) > caps.max_columns:
        raise InputError(
            f"{len(sequence)} residues, more than the cap of {caps.max_columns}; "
            "raise InputCaps.max_columns if meant",
            path=path or None,
            line=line,
        )
    if not (sequence.isascii() and sequence.isalpha()):
        bad = next(c for c in sequence if not (c.isascii() and c.isalpha()))
        raise InputError(f"{bad!r} is no residue letter", path=path or None, line=line)
    return sequence

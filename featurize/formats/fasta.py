"""FASTA: text -> sequences and their headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evofeed.base.errors import InputError, NoProtein
from evofeed.featurize.config import InputCaps

SUFFIXES: Final = (".fasta", ".fa", ".faa", ".fas")
BASES: Final = "the bases of"
"""First words of the error for a nucleic acid."""
_MIN_DNA_LENGTH: Final = 10
"""Shorter sequences are ambiguous: `GATTACA` may be a peptide."""


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


def parse_fasta(
    data: bytes,
    *,
    path: str = "",
    caps: InputCaps | None = None,
    problems: list[InputError] | None = None,
    rna: bool = False,
) -> list[FastaRecord]:
    """The records of a FASTA file, letters upper-cased, a final `*` dropped. Errors of single
    records go to `problems`, and the others are returned; without it the first is raised.

    Raises:
        InputError: residues before a header, an empty sequence, a character that is
            not a letter, or bases instead of amino acids; names the line.
    """
    caps = caps or InputCaps()
    errors: list[InputError] = []
    headers: list[tuple[str, int]] = []
    bodies: list[list[str]] = []
    for number, raw in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == ">":
            headers.append((line[1:], number))
            bodies.append([])
        elif bodies:
            bodies[-1].append(line)
        elif not errors:
            errors.append(InputError("residues before the first '>' header", line=number))
    records = []
    for (header, number), body in zip(headers, bodies, strict=True):
        record = FastaRecord(header, "".join(body).upper().removesuffix("*"), number)
        if error := _sequence_error(record.sequence, caps, rna):
            error.line, error.item = number, record.name or None
            errors.append(error)
        else:
            records.append(record)
    for error in errors:
        error.path = path or None
        if problems is None:
            raise error
        problems.append(error)
    return records


def checked_sequence(letters: str, path: str) -> str:
    """A protein's sequence from a job or a header, its letters normalized as by `parse_fasta`.

    Raises:
        InputError: they are not those of a protein; names the file `path`.
    """
    sequence = "".join(letters.split()).upper().removesuffix("*")
    if error := _sequence_error(sequence, InputCaps(), rna=False):
        error.path = path or None
        raise error
    return sequence


def _sequence_error(sequence: str, caps: InputCaps, rna: bool) -> InputError | None:
    """The error of a sequence that is not a protein's, nor an RNA's if `rna`; else None."""
    if not sequence:
        return InputError("a header without residues")
    if message := caps.excess("max_columns", len(sequence), f"{len(sequence)} residues"):
        return InputError(message)
    if sequence.isascii() and sequence.isalpha():
        bases = "" if rna and is_rna(sequence) else nucleic_acid(sequence)
        return NoProtein(f"{BASES} {bases}: only proteins are featurized") if bases else None
    bad = next(c for c in sequence if not (c.isascii() and c.isalpha()))
    hints = {
        ":": "it joins the chains of a complex: give each chain a record of its own",
        "-": "a gap, so this is an alignment: name it <chain>.a3m",
        ".": "a gap, so this is an alignment: name it <chain>.a3m",
        "*": "a stop codon amid the residues: cut the sequence there",
    }
    hint = hints.get(bad, "a ligand's SMILES? Only proteins are featurized")
    return InputError(f"{bad!r} is not a residue letter ({hint})")


def is_rna(sequence: str) -> bool:
    """True if all letters are bases, U among them."""
    return "U" in sequence and set(sequence) <= set("ACGUN")


def nucleic_acid(sequence: str) -> str:
    """`an RNA` or `a DNA` if all letters are bases; empty for a protein."""
    letters = set(sequence)
    if is_rna(sequence):
        return "an RNA"
    several = len(letters - {"N"}) >= 3 and len(sequence) >= _MIN_DNA_LENGTH
    return "a DNA" if several and letters <= set("ACGTN") else ""

"""FASTA: text -> sequences and their headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evofeed.base.errors import InputError, NoProtein
from evofeed.featurize.config import InputCaps

SUFFIXES: Final = (".fasta", ".fa", ".faa", ".fas")
BASES: Final = "the bases of"
"""How the complaint about a nucleic acid begins."""
_SHORTEST_DNA: Final = 10
"""Fewer letters than these say nothing: `GATTACA` may be a peptide."""


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
    faults: list[InputError] | None = None,
    rna: bool = False,
) -> list[FastaRecord]:
    """The records of a FASTA file, letters upper-cased, a final `*` dropped. What is wrong
    with a record goes to `faults`, and the others are returned; without it the first raises.

    Raises:
        InputError: residues before a header, an empty sequence, a character that is
            no letter, or bases instead of amino acids; names the line.
    """
    caps = caps or InputCaps()
    problems: list[InputError] = []
    heads: list[tuple[str, int]] = []
    parts: list[list[str]] = []
    for number, raw in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == ">":
            heads.append((line[1:], number))
            parts.append([])
        elif parts:
            parts[-1].append(line)
        elif not problems:
            problems.append(InputError("residues before the first '>' header", line=number))
    records = []
    for (head, number), part in zip(heads, parts, strict=True):
        record = FastaRecord(head, "".join(part).upper().removesuffix("*"), number)
        wrong = _complaint(record.sequence, caps, rna)
        if wrong:
            kind = NoProtein if wrong.startswith(BASES) else InputError
            problems.append(kind(wrong, line=number, item=record.name or None))
        else:
            records.append(record)
    for problem in problems:
        problem.path = path or None
        if faults is None:
            raise problem
        faults.append(problem)
    return records


def checked_sequence(letters: str, path: str) -> str:
    """A protein's sequence that a job or a header gave, its letters as `parse_fasta` wants them.

    Raises:
        InputError: they are none of a protein; names the file `path`.
    """
    sequence = "".join(letters.split()).upper().removesuffix("*")
    if wrong := _complaint(sequence, InputCaps(), rna=False):
        kind = NoProtein if wrong.startswith(BASES) else InputError
        raise kind(wrong, path=path or None)
    return sequence


def _complaint(sequence: str, caps: InputCaps, rna: bool) -> str:
    """What is wrong with a protein's sequence, or an RNA's; empty if nothing is."""
    if not sequence:
        return "a header without residues"
    if why := caps.excess("max_columns", len(sequence), f"{len(sequence)} residues"):
        return why
    if sequence.isascii() and sequence.isalpha():
        bases = "" if rna and is_rna(sequence) else nucleic_acid(sequence)
        return f"{BASES} {bases}: only proteins are featurized" if bases else ""
    bad = next(c for c in sequence if not (c.isascii() and c.isalpha()))
    what = {
        ":": "it joins the chains of a complex: give each chain a record of its own",
        "-": "a gap, so this is an alignment: name it <chain>.a3m",
        ".": "a gap, so this is an alignment: name it <chain>.a3m",
        "*": "a stop codon amid the residues: cut the sequence there",
    }
    smiles = "a ligand's SMILES? Only proteins are featurized"
    return f"{bad!r} is not a residue letter ({what.get(bad) or smiles})"


def is_rna(sequence: str) -> bool:
    """Whether its letters are those of an RNA, U among them."""
    return "U" in sequence and set(sequence) <= set("ACGUN")


def nucleic_acid(sequence: str) -> str:
    """What a sequence is if its letters are bases: an RNA or a DNA; empty for a protein's."""
    letters = set(sequence)
    if is_rna(sequence):
        return "an RNA"
    several = len(letters - {"N"}) >= 3 and len(sequence) >= _SHORTEST_DNA
    return "a DNA" if several and letters <= set("ACGTN") else ""

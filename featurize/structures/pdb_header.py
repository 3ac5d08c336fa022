"""What a legacy PDB file says before its atoms: SEQRES, dates, method, resolution."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evofeed.featurize.structures.residue_names import is_amino_acid

_MONTHS: Final = ("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC").split()
_DATE: Final = re.compile(r"(\d\d)-([A-Z]{3})-(\d\d)$")
_FIRST_YEAR: Final = 71
"""The PDB began in 1971: two digits below are of this century."""
_RESOLUTION: Final = re.compile(r"REMARK   2 RESOLUTION\.\s+(\d+\.?\d*) ANGSTROM")
_UNSEEN: Final = re.compile(r"REMARK 465 +(?:\d+ +)?(\w{1,3}) (.) +(-?\d+)([A-Za-z]?) *$")
_ATOMS: Final = re.compile(rb"(?m)^(?:ATOM  |HETATM)")


@dataclass(frozen=True, slots=True)
class PdbHeader:
    """What the records before the atoms tell.

    Attributes:
        seqres: residue names by chain, columns 11 and 12 without blanks.
        unseen: by chain, residues of REMARK 465: number, insertion code, name.
        modified: names that MODRES gives a parent among the amino acids.
        release_date: ISO, of the oldest REVDAT, else of HEADER.
        is_deposition: that is HEADER's, so the entry was released some time later.
        resolution: ångström, 0.0 if REMARK 2 has none.
        method: of EXPDTA, lower case, comma between several.
    """

    seqres: dict[str, list[str]]
    unseen: dict[str, list[tuple[int, str, str]]]
    modified: frozenset[str]
    release_date: str
    is_deposition: bool
    resolution: float
    method: str


def read_pdb_header(data: bytes) -> PdbHeader:
    """The header records; whatever is missing or unreadable is empty."""
    first = _ATOMS.search(data)
    text = data[: first.start() if first else len(data)].decode("latin-1")
    seqres: dict[str, list[str]] = {}
    unseen: dict[str, list[tuple[int, str, str]]] = {}
    modified, revisions, header_date, method, resolution = set(), [], "", "", 0.0
    for line in text.splitlines():
        kind = line[:6]
        if kind == "SEQRES":
            seqres.setdefault(line[10:12].strip(), []).extend(line[19:70].split())
        elif kind == "MODRES":
            if is_amino_acid(line[24:27].strip()):
                modified.add(line[12:15].strip())
        elif kind == "HEADER":
            header_date = iso_date(line[50:59])
        elif kind == "REVDAT":
            revisions.append(iso_date(line[13:22]))
        elif kind == "EXPDTA":
            method += line[10:79].strip().lower() + " "
        elif kind == "REMARK" and (found := _RESOLUTION.match(line)):
            resolution = float(found[1])
        elif kind == "REMARK" and (found := _UNSEEN.match(line.rstrip())):
            residue = (int(found[3]), found[4] or " ", found[1])
            unseen.setdefault(found[2].strip(), []).append(residue)
    revisions = [date for date in revisions if date]
    return PdbHeader(
        seqres=seqres,
        unseen=unseen,
        modified=frozenset(modified),
        release_date=min(revisions, default=header_date),
        is_deposition=bool(header_date) and not revisions,
        resolution=resolution,
        method=",".join(part.strip() for part in method.split(";") if part.strip()),
    )


def iso_date(text: str) -> str:
    """`07-MAR-84` as 1984-03-07; '' if it is no date."""
    found = _DATE.match(text.strip())
    if found is None or found[2] not in _MONTHS:
        return ""
    century = 19 if int(found[3]) >= _FIRST_YEAR else 20
    return f"{century}{found[3]}-{_MONTHS.index(found[2]) + 1:02}-{found[1]}"

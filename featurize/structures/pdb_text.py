"""Records of legacy PDB text: the header, and atoms -> `AtomTable`, split by column.

gemmi's reader silently takes `1.0.0` for 1, `x` for residue 0 and `.` for 0 Å; here a field
that is not a number is an error that names its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.featurize.config import InputCaps
from evofeed.featurize.structures.atom_table import MAX_COORDINATE, NO_NUMBER, AtomTable, Coded
from evofeed.featurize.structures.residue_names import is_amino_acid

_ENDS: Final = ("ENDMDL", "END   ")
_ABSENT: Final = ("nan", "+nan", "-nan", ".", "?")
"""Unknown coordinates as various programs write them."""
_MONTHS: Final = ("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC").split()
_DATE: Final = re.compile(r"(\d\d)-([A-Z]{3})-(\d\d)$")
_FIRST_YEAR: Final = 71
"""The PDB began in 1971: lower years of two digits are of the 21st century."""
_RESOLUTION: Final = re.compile(r"REMARK   2 RESOLUTION\.\s+(\d+\.?\d*) ANGSTROM")
_MISSING: Final = re.compile(r"REMARK 465 +(?:\d+ +)?(\w{1,3}) (.) +(-?\d+)([A-Za-z]?) *$")


def read_pdb_table(data: bytes, path: str, caps: InputCaps) -> AtomTable:
    """The atom records of the first model; labels are the author's.

    Chain ids are columns 21 and 22; if these are blank in all records and there are several
    segments, the segment ids.

    Raises:
        MmcifError: no atoms, too many, or a field that is not a number; names the line.
    """
    fields = _Fields.of(data, path)
    size = len(fields.lines)
    if not size:
        head = ascii(data.lstrip()[:30].decode("latin-1"))
        message = f"no ATOM record in it, it begins {head}: give the file with the coordinates"
        raise MmcifError(message, path=path)
    if message := caps.excess("max_atoms", size, f"{size} atoms"):
        raise MmcifError(message, path=path)
    axes = [fields.floats(30 + 8 * n, 38 + 8 * n, axis) for n, axis in enumerate("xyz")]
    too_large = (np.abs(axes) >= MAX_COORDINATE).any(axis=0)
    if too_large.any():
        line = fields.line_numbers[int(too_large.argmax())]
        raise MmcifError("a coordinate is beyond 10^7 ångström", path=path, line=line)
    chain, segments = fields.coded(20, 22), fields.coded(72, 76)
    if chain.names == [""] and len(segments.names) > 1:
        chain = segments
    return AtomTable(
        chain=chain,
        label=chain,
        number=np.full(size, NO_NUMBER),
        author_number=fields.numbers(22, 26, hybrid36, "residue number").astype(np.int64),
        insertion=fields.coded(26, 27, ("",)),
        component=fields.coded(17, 20),
        atom=fields.coded(12, 16),
        altloc=fields.coded(16, 17, ("",)).codes,
        hetero=fields.coded(0, 6).where(lambda kind: kind == "HETATM"),
        xyz=np.stack(axes, axis=-1),
        occupancy=fields.floats(54, 60, "occupancy", 1.0),
        b_factor=fields.floats(60, 66, "B factor", 0.0),
        ters=np.array(fields.ters, np.int64),
        unlabelled=True,
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """Atom records of the first model, read by column; `ters`: rows that follow a TER record."""

    lines: list[str]
    line_numbers: list[int]
    ters: list[int]
    path: str

    @classmethod
    def of(cls, data: bytes, path: str) -> _Fields:
        fields = cls([], [], [], path)
        for number, raw in enumerate(data.splitlines(), 1):
            line = raw.decode("latin-1")
            kind = line[:6]
            if kind in ("ATOM  ", "HETATM"):
                fields.lines.append(line)
                fields.line_numbers.append(number)
            elif kind.rstrip() == "TER":
                fields.ters.append(len(fields.lines))
            elif kind.ljust(6) in _ENDS and fields.lines:
                break
        return fields

    def texts(self, start: int, end: int) -> list[str]:
        return [line[start:end].strip() for line in self.lines]

    def coded(self, start: int, end: int, blank: tuple[str, ...] = ()) -> Coded:
        return Coded.of(self.texts(start, end), blank)

    def numbers(self, start: int, end: int, parse: Callable[[str], Any], field: str) -> np.ndarray:
        values = []
        for text, line in zip(self.texts(start, end), self.line_numbers, strict=True):
            value = parse(text)
            if value is None:
                message = f"{field} {text!r} is not a number: not the columns of a PDB file"
                raise MmcifError(message, path=self.path, line=line)
            values.append(value)
        return np.array(values)

    def floats(self, start: int, end: int, field: str, default: float | None = None) -> np.ndarray:
        """Numbers; NaN for `nan`, `.` and `?`, and `default` for these and blanks where given."""
        absent = float("nan") if default is None else default

        def parse(text: str) -> float | None:
            if text.lower() in _ABSENT or (default is not None and not text):
                return absent
            try:
                return float(text)
            except ValueError:
                return None

        return self.numbers(start, end, parse, field)


def hybrid36(text: str) -> int | None:
    """A residue number of four columns that continues after 9999 as A000, A001, ... zzzz.

    Source: cctbx, hybrid_36.
    """
    try:
        return int(text)
    except ValueError:
        pass
    if len(text) != 4 or not text.isascii() or not text.isalnum() or text[0].isdigit():
        return None
    base = 36**3
    if text == text.upper():
        return int(text, 36) - 10 * base + 10_000
    if text == text.lower():
        return int(text, 36) + 16 * base + 10_000
    return None


@dataclass(slots=True)
class PdbHeader:
    """Values of the records before the atoms.

    Attributes:
        seqres: residue names by chain; the chain id is columns 11 and 12 without blanks.
        missing: by chain, residues of REMARK 465: number, insertion code, name.
        modified: names to which MODRES gives an amino acid as parent.
        release_date: ISO, of the oldest REVDAT, else of HEADER.
        is_deposition: `release_date` is HEADER's: the entry was released some time later.
        resolution: ångström, 0.0 if REMARK 2 has none.
        method: of EXPDTA, lower case, comma between several.
    """

    seqres: dict[str, list[str]]
    missing: dict[str, list[tuple[int, str, str]]]
    modified: frozenset[str]
    release_date: str = ""
    is_deposition: bool = False
    resolution: float = 0.0
    method: str = ""


def read_pdb_header(data: bytes) -> PdbHeader:
    """The header records; missing and unreadable values are empty."""
    header = PdbHeader({}, {}, frozenset())
    revisions, deposited, method = [], "", ""
    for raw in data.splitlines():
        line = raw.decode("latin-1")
        kind = line[:6]
        if kind in ("ATOM  ", "HETATM"):
            break
        if kind == "SEQRES":
            header.seqres.setdefault(line[10:12].strip(), []).extend(line[19:70].split())
        elif kind == "MODRES":
            if is_amino_acid(line[24:27].strip()):
                header.modified |= {line[12:15].strip()}
        elif kind == "HEADER":
            deposited = _iso_date(line[50:59])
        elif kind == "REVDAT":
            revisions.append(_iso_date(line[13:22]))
        elif kind == "EXPDTA":
            method += line[10:79].strip().lower() + " "
        elif kind == "REMARK" and (match := _RESOLUTION.match(line)):
            header.resolution = float(match[1])
        elif kind == "REMARK" and (match := _MISSING.match(line.rstrip())):
            residue = (int(match[3]), match[4] or " ", match[1])
            header.missing.setdefault(match[2].strip(), []).append(residue)
    dates = [date for date in revisions if date]
    header.release_date = min(dates, default=deposited)
    header.is_deposition = bool(deposited) and not dates
    header.method = ",".join(part.strip() for part in method.split(";") if part.strip())
    return header


def _iso_date(text: str) -> str:
    """`07-MAR-84` as 1984-03-07; '' if it is not a date."""
    match = _DATE.match(text.strip())
    if match is None or match[2] not in _MONTHS:
        return ""
    day, month, year = match.groups()
    century = 19 if int(year) >= _FIRST_YEAR else 20
    return f"{century}{year}-{_MONTHS.index(month) + 1:02}-{day}"

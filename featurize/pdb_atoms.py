"""Atom records of legacy PDB text as arrays, read by column at the speed of its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.errors import MmcifError
from evofeed.featurize.atom_loop import decimal, factorise
from evofeed.featurize.config import InputCaps
from evofeed.featurize.reading import line_of
from evofeed.shapes import Bool, Float, Int, Shaped

_FIELDS: Final = ((30, 38), (38, 46), (46, 54), (54, 60), (60, 66))
_FIELD_NAMES: Final = ("x", "y", "z", "occupancy", "B factor")
_NUMBER: Final = (22, 26)
_NO_NUMBER: Final = np.iinfo(np.int32).min
_ABSENT: Final = ("nan", "+nan", "-nan", ".", "?")
"""How writers put a coordinate that is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class PdbAtoms:
    """ATOM and HETATM records of the first model, in file order.

    Attributes:
        atom, residue: codes into `atoms`, `residues`: names without blanks.
        chain: columns 21 and 22, the second in the low byte.
        altloc, insertion: the character, 32 for none.
        number: of the residue.
        xyz: ångström, NaN where the file has `nan`, `.` or `?`.
        occupancy, b_factor: NaN where blank.
        hetero: HETATM records.
        ters: rows before which there is a TER record.
        odd: whether a field was no plain number, and Biopython's reading may differ.
    """

    atom: Int[np.ndarray, " A"]
    residue: Int[np.ndarray, " A"]
    chain: Int[np.ndarray, " A"]
    altloc: Int[np.ndarray, " A"]
    insertion: Int[np.ndarray, " A"]
    number: Int[np.ndarray, " A"]
    xyz: Float[np.ndarray, "A 3"]
    occupancy: Float[np.ndarray, " A"]
    b_factor: Float[np.ndarray, " A"]
    hetero: Bool[np.ndarray, " A"]
    ters: Int[np.ndarray, " T"]
    atoms: list[str]
    residues: list[str]
    odd: bool


def read_pdb_atoms(data: bytes, path: str, caps: InputCaps) -> PdbAtoms:
    """The atom records of the first model.

    Raises:
        MmcifError: none, too many, or a field that is no number; names the line.
    """
    text = np.frombuffer(data, np.uint8)
    rows, ter_count = count_records(text)
    if rows == 0:
        begins = ascii(data.lstrip()[:30].decode("latin-1"))
        what = f"no ATOM record in it, it begins {begins}: give the file with the coordinates"
        raise MmcifError(what, path=path or None)
    if rows > caps.max_atoms:
        raise MmcifError(
            f"{rows} atoms, more than the cap of {caps.max_atoms}; raise InputCaps.max_atoms "
            "if meant",
            path=path or None,
        )
    names = np.zeros([2, rows], np.uint64)
    codes = np.zeros([3, rows], np.int32)
    number = np.empty(rows, np.int32)
    floats = np.empty([5, rows], np.float64)
    hetero = np.zeros(rows, np.bool_)
    starts = np.zeros(rows, np.int64)
    ters = np.zeros(ter_count, np.int64)
    odd = read_records(text, names, codes, number, floats, hetero, starts, ters)
    for row in np.flatnonzero((number == _NO_NUMBER) | np.isnan(floats).any(0)) if odd else ():
        _repair(data, path, int(row), int(starts[row]), number, floats)
    if not np.all(~(np.abs(floats[:3]) >= 1e7)):
        raise MmcifError("a coordinate is beyond 10^7 ångström", path=path or None)
    atom, atoms = _named(names[0])
    residue, residues = _named(names[1])
    return PdbAtoms(
        atom=atom,
        residue=residue,
        chain=codes[0],
        altloc=codes[1],
        insertion=codes[2],
        number=number,
        xyz=np.ascontiguousarray(floats[:3].T),
        occupancy=floats[3],
        b_factor=floats[4],
        hetero=hetero,
        ters=ters,
        atoms=atoms,
        residues=residues,
        odd=bool(odd),
    )


def _named(keys: Shaped[np.ndarray, " A"]) -> tuple[Int[np.ndarray, " A"], list[str]]:
    codes, unique = factorise(keys)
    return codes, [
        int(key).to_bytes(8, "little").rstrip(b"\0").decode("latin-1").strip() for key in unique
    ]


def _repair(data: bytes, path: str, row: int, start: int, number: Any, floats: Any) -> None:
    """The fields of a record that are no plain decimal numbers."""
    end = data.find(b"\n", start)
    line = data[start : end if end >= 0 else len(data)].decode("latin-1").rstrip("\r")
    if number[row] == _NO_NUMBER:
        text = line[slice(*_NUMBER)].strip()
        found = hybrid36(text)
        if found is None:
            what = f"residue number {text!r} is none: not the columns of a PDB file"
            raise MmcifError(what, path=path or None, line=line_of(data, start))
        number[row] = found
    for field, (name, span) in enumerate(zip(_FIELD_NAMES, _FIELDS, strict=True)):
        if not math.isnan(floats[field, row]):
            continue
        text = line[slice(*span)].strip()
        if text.lower() in _ABSENT or (field > 2 and not text):
            continue
        try:
            floats[field, row] = float(text)
        except ValueError:
            what = f"{name} {text!r} is no number: not the columns of a PDB file"
            raise MmcifError(what, path=path or None, line=line_of(data, start)) from None


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


@njit(cache=True, nogil=True)
@no_type_check
def _kind(data: Any, at: Any) -> Any:
    """1 ATOM, 2 HETATM, 3 TER, 4 the end of a model, 0 else, of the line that begins there."""
    n = data.size
    c = data[at]
    if c == 65:  # A
        if at + 6 <= n and data[at + 1] == 84 and data[at + 2] == 79 and data[at + 3] == 77:
            return 1 if data[at + 4] == 32 and data[at + 5] == 32 else 0
    elif c == 72:  # H
        if at + 6 <= n and data[at + 1] == 69 and data[at + 2] == 84 and data[at + 3] == 65:
            return 2 if data[at + 4] == 84 and data[at + 5] == 77 else 0
    elif c == 84:  # T
        if at + 3 <= n and data[at + 1] == 69 and data[at + 2] == 82:
            return 3 if at + 3 == n or data[at + 3] in (32, 13, 10) else 0
    elif c == 69 and at + 6 <= n and data[at + 1] == 78 and data[at + 2] == 68:  # END
        if data[at + 3] == 77 and data[at + 4] == 68 and data[at + 5] == 76:
            return 4
        if data[at + 3] == 32 and data[at + 4] == 32 and data[at + 5] == 32:
            return 4
    return 0


@njit(cache=True, nogil=True)
@no_type_check
def count_records(data: Any) -> Any:
    """Atom records and TER records of the first model."""
    n = data.size
    at = 0
    rows = 0
    ters = 0
    while at < n:
        kind = _kind(data, at)
        if kind == 1 or kind == 2:
            rows += 1
        elif kind == 3:
            ters += 1
        elif kind == 4 and rows > 0:
            break
        while at < n and data[at] != 10:
            at += 1
        at += 1
    return rows, ters


@njit(cache=True, nogil=True)
@no_type_check
def _field(data: Any, first: Any, last: Any) -> Any:
    """`(value, ok)` of a field with blanks around the number."""
    while first < last and data[first] == 32:
        first += 1
    while last > first and (data[last - 1] == 32 or data[last - 1] == 13):
        last -= 1
    if first == last:
        return 0.0, False
    return decimal(data, first, last)


@njit(cache=True, nogil=True)
@no_type_check
def _word(data: Any, first: Any, last: Any) -> Any:
    """Up to eight bytes, blanks at both ends left out, as a number."""
    while first < last and data[first] == 32:
        first += 1
    while last > first and data[last - 1] == 32:
        last -= 1
    key = np.uint64(0)
    for i in range(last - 1, first - 1, -1):
        key = (key << np.uint64(8)) | np.uint64(data[i])
    return key


@njit(cache=True, nogil=True)
@no_type_check
def read_records(
    data: Any,
    names: Any,
    codes: Any,
    number: Any,
    floats: Any,
    hetero: Any,
    starts: Any,
    ters: Any,
) -> Any:
    """Fill the columns; True if a field was no plain number and is unset."""
    n = data.size
    at = 0
    row = 0
    ter = 0
    odd = False
    while at < n:
        kind = _kind(data, at)
        end = at
        while end < n and data[end] != 10:
            end += 1
        if kind == 1 or kind == 2:
            starts[row] = at
            hetero[row] = kind == 2
            value, ok = 0.0, False
            if end - at > 26:  # else the line is too short for a number, which is an error
                names[0, row] = _word(data, at + 12, at + 16)
                names[1, row] = _word(data, at + 17, at + 20)
                codes[0, row] = np.int32(data[at + 20]) * 256 + np.int32(data[at + 21])
                codes[1, row] = data[at + 16]
                codes[2, row] = data[at + 26]
                value, ok = _field(data, at + 22, at + 26)
            if ok and value == np.floor(value):
                number[row] = np.int32(value)
            else:
                number[row] = -2147483648
                odd = True
            for field in range(5):
                first = at + 30 + 8 * field if field < 3 else at + 54 + 6 * (field - 3)
                last = first + (8 if field < 3 else 6)
                value, ok = _field(data, min(first, end), min(last, end))
                if ok:
                    floats[field, row] = value
                else:
                    floats[field, row] = np.nan
                    odd = True
            row += 1
        elif kind == 3:
            ters[ter] = row
            ter += 1
        elif kind == 4 and row > 0:
            break
        at = end + 1
    return odd

"""Atom records of legacy PDB text -> `AtomTable`, cut by column.

gemmi's reader takes `1.0.0` for 1, `x` for residue 0 and `.` for 0 Å without a word; here a field
that is no number is an error that names its line.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.base.shapes import Float, Int, Shaped
from evofeed.featurize.config import InputCaps
from evofeed.featurize.structures.atom_table import NO_NUMBER, AtomTable, Coded

_WIDTH: Final = 80
_ATOMS: Final = (b"ATOM  ", b"HETATM")
_ENDS: Final = (b"ENDMDL", b"END   ")
_ABSENT: Final = ("nan", "+nan", "-nan", ".", "?")
"""How writers put a coordinate that is not known."""
_MAX_COORDINATE: Final = 1e7

_Lines = Shaped[np.ndarray, "A 80"]


def read_pdb_table(data: bytes, path: str, caps: InputCaps) -> AtomTable:
    """The atom records of the first model; labels are the author's.

    Chain ids are columns 21 and 22, segment ids where all of those are blank and several
    segments are named.

    Raises:
        MmcifError: none, too many, or a field that is no number; names the line.
    """
    lines, numbers, ters = _records(data)
    if not lines:
        begins = ascii(data.lstrip()[:30].decode("latin-1"))
        what = f"no ATOM record in it, it begins {begins}: give the file with the coordinates"
        raise MmcifError(what, path=path or None)
    if len(lines) > caps.max_atoms:
        raise MmcifError(
            f"{len(lines)} atoms, more than the cap of {caps.max_atoms}; raise "
            "InputCaps.max_atoms if meant",
            path=path or None,
        )
    cut = _Fields(lines, numbers, path)
    axes = [cut.floats(30 + 8 * n, 38 + 8 * n, axis) for n, axis in enumerate("xyz")]
    chain = cut.coded(20, 22)
    segments = cut.coded(72, 76)
    if chain.names == [""] and len(segments.names) > 1:
        chain = segments
    size = len(lines)
    return AtomTable(
        chain=chain,
        label=chain,
        number=np.full(size, NO_NUMBER),
        author_number=cut.residue_numbers(),
        insertion=cut.coded(26, 27, blank=True),
        component=cut.coded(17, 20),
        atom=cut.coded(12, 16),
        altloc=cut.coded(16, 17, blank=True).codes,
        hetero=cut.coded(0, 6).where(lambda kind: kind == "HETATM"),
        xyz=np.stack(axes, axis=-1),
        occupancy=cut.floats(54, 60, "occupancy", 1.0),
        b_factor=cut.floats(60, 66, "B factor", 0.0),
        ters=np.array(ters, np.int64),
        unlabelled=True,
    )


def _records(data: bytes) -> tuple[list[bytes], list[int], list[int]]:
    """Atom records of the first model, their line numbers, and the rows before TER records."""
    lines: list[bytes] = []
    numbers: list[int] = []
    ters: list[int] = []
    for number, line in enumerate(data.splitlines(), 1):
        kind = line[:6]
        if kind in _ATOMS:
            lines.append(line)
            numbers.append(number)
        elif kind.rstrip() == b"TER":
            ters.append(len(lines))
        elif kind.ljust(6) in _ENDS and lines:
            break
    return lines, numbers, ters


class _Fields:
    """Columns of records as numpy arrays."""

    def __init__(self, lines: list[bytes], numbers: list[int], path: str) -> None:
        padded = b"".join(line[:_WIDTH].ljust(_WIDTH) for line in lines)
        self._bytes = np.frombuffer(padded, np.uint8).reshape(len(lines), _WIDTH)
        self._numbers, self._path = numbers, path

    def _texts(self, start: int, end: int) -> Any:
        width = end - start
        return np.ascontiguousarray(self._bytes[:, start:end]).view(f"S{width}").reshape(-1)

    def _error(self, row: int, what: str) -> MmcifError:
        why = f"{what}: not the columns of a PDB file"
        return MmcifError(why, path=self._path or None, line=self._numbers[row])

    def coded(self, start: int, end: int, *, blank: bool = False) -> Coded:
        """Texts without blanks around; with `blank`, code 0 is ''."""
        distinct, codes = np.unique(self._texts(start, end), return_inverse=True)
        texts = [text.decode("latin-1").strip() for text in distinct.tolist()]
        again = Coded.of(texts, ("",) if blank else ())
        codes = again.codes[codes]
        if blank:
            return Coded(codes, again.names)
        # Codes count by first appearance in the file.
        _, first = np.unique(codes, return_index=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        return Coded(rank[codes], [again.names[code] for code in order])

    def residue_numbers(self) -> Int[np.ndarray, " A"]:
        """Columns 23 to 26, hybrid-36 beyond 9999."""
        distinct, codes = np.unique(self._texts(22, 26), return_inverse=True)
        values = []
        for place, raw in enumerate(distinct.tolist()):
            text = raw.decode("latin-1").strip()
            number = hybrid36(text)
            if number is None:
                row = int(np.argmax(codes == place))
                raise self._error(row, f"residue number {text!r} is none")
            values.append(number)
        return np.array(values, np.int64)[codes]

    def floats(
        self, start: int, end: int, what: str, default: float | None = None
    ) -> Float[np.ndarray, " A"]:
        """Numbers; NaN for `nan`, `.` and `?`, and `default` for these and blanks where given."""
        texts = self._texts(start, end)
        try:
            values = texts.astype(np.float64)
        except ValueError:
            values = np.array([self._float(row, t, what, default) for row, t in enumerate(texts)])
        if default is not None:
            return np.where(np.isnan(values), default, values)
        if (np.abs(values) >= _MAX_COORDINATE).any():
            raise MmcifError("a coordinate is beyond 10^7 ångström", path=self._path or None)
        return np.asarray(values)

    def _float(self, row: int, raw: bytes, what: str, default: float | None) -> float:
        text = raw.decode("latin-1").strip()
        if text.lower() in _ABSENT or (default is not None and not text):
            return float("nan")
        try:
            return float(text)
        except ValueError:
            raise self._error(row, f"{what} {text!r} is no number") from None


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

"""The atom table of a regular mmCIF file, read at the speed of its bytes.

In the files of the PDB the `_atom_site` loop is most of the text and has one
row a line. Such a loop is cut out and read here by a compiled kernel; gemmi
reads the rest. Whatever is irregular (quoted blanks, broken lines, missing
items, odd numbers, '.' for a chain's name) is left to `atom_table.read_atom_sites`, which is slower
and the oracle of this in the tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, no_type_check

import numpy as np
from numba import njit

from evofeed.featurize.atom_sites import AtomSites
from evofeed.featurize.config import InputCaps
from evofeed.residues import ATOM_ORDER
from evofeed.shapes import Float, Int, Shaped

_TEXTS: Final = (
    *("group_PDB", "label_atom_id", "label_alt_id", "label_comp_id", "label_asym_id"),
    *("pdbx_PDB_ins_code", "auth_asym_id", "pdbx_PDB_model_num"),
)
_FLOATS: Final = ("Cartn_x", "Cartn_y", "Cartn_z", "occupancy")
_B_FACTOR: Final = "B_iso_or_equiv"
_INTS: Final = ("label_seq_id", "auth_seq_id")
_FIRST_FLOAT: Final = 10
_FIRST_INT: Final = 20
_MODEL: Final = _TEXTS.index("pdbx_PDB_model_num")
_UNSET_INT: Final = -(1 << 62)
_HEAD: Final = re.compile(rb"loop_[ \t]*\r?\n((?:_atom_site\.\w+[ \t]*\r?\n)+)")
_ANISOTROP: Final = re.compile(
    rb"loop_[ \t]*\r?\n(?:_atom_site_anisotrop\.[^\n]*\n)+(?:[0-9][^\n]*\n)+(?=#)"
)


@dataclass(frozen=True, slots=True, eq=False)
class AtomLoop:
    """Rows of the first model, column by column; texts packed into 64 bits."""

    columns: tuple[str, ...]
    texts: Shaped[np.ndarray, "8 A"]
    floats: Float[np.ndarray, "F A"]
    ints: Int[np.ndarray, "2 A"]


class _LoopColumns(NamedTuple):
    """Items of an `AtomLoop` by row of its arrays."""

    texts: tuple[str, ...]
    ints: tuple[str, ...]
    unset: int

    def floats(self, b_factor: bool) -> tuple[str, ...]:
        """Positions and occupancy, and the B factor if asked for."""
        return (*_FLOATS, _B_FACTOR) if b_factor else _FLOATS


COLUMNS: Final = _LoopColumns(_TEXTS, _INTS, _UNSET_INT)


def cut_atom_loop(
    data: bytes, caps: InputCaps, *, b_factor: bool = False
) -> tuple[bytes, AtomLoop | None]:
    """The file without its atom table, and the table; the file itself and None if irregular.

    Args:
        data: content of the file.
        caps: rows at most.
        b_factor: read it too; a table without is irregular then.
    """
    head = _HEAD.match(data, _line_before(data, b"\n_atom_site."))
    if head is None or data.find(b"\ndata_", 1) > 0 or data.count(b"\n;", 0, head.start()) % 2:
        return data, None
    columns = [line.strip()[11:].decode() for line in head[1].splitlines()]
    wanted = COLUMNS.floats(b_factor)
    places = _places(columns, wanted)
    if places is None:
        return data, None
    text = np.frombuffer(data, np.uint8)
    end = int(loop_end(text, head.end()))
    if end < 0:
        return data, None
    rows = data.count(b"\n", head.end(), end) + 1
    if rows > caps.max_atoms:
        return data, None
    texts = np.zeros([len(_TEXTS), rows], np.uint64)
    floats = np.empty([len(wanted), rows], np.float64)
    ints = np.empty([len(_INTS), rows], np.int64)
    found = read_rows(text, head.end(), end, places, texts, floats, ints)
    if found <= 0:
        return data, None
    rest = data[: head.start()] + _without_anisotrop(data[end:])
    return rest, AtomLoop(tuple(columns), texts[:, :found], floats[:, :found], ints[:, :found])


def _line_before(data: bytes, item: bytes) -> int:
    """Start of the line before the first one that begins with an item."""
    return data.rfind(b"\n", 0, max(0, data.find(item))) + 1


def _without_anisotrop(rest: bytes) -> bytes:
    """Without the table of thermal ellipsoids, often as long as the atom table."""
    found = _ANISOTROP.match(rest, _line_before(rest, b"\n_atom_site_anisotrop."))
    return rest if found is None else rest[: found.start()] + rest[found.end() :]


def _places(columns: list[str], floats: tuple[str, ...]) -> Int[np.ndarray, " C"] | None:
    """Where each column of the file goes, -1 for nowhere; None if one is missing or doubled."""
    place = {name: i for i, name in enumerate(_TEXTS)}
    place |= {name: _FIRST_FLOAT + i for i, name in enumerate(floats)}
    place |= {name: _FIRST_INT + i for i, name in enumerate(_INTS)}
    if columns[0] != "group_PDB" or len(set(columns)) != len(columns):
        return None
    if not place.keys() <= set(columns):
        return None
    return np.array([place.get(name, -1) for name in columns], np.int64)


def sites_of(loop: AtomLoop) -> AtomSites | None:
    """The atom table as `AtomSites`; None if a coordinate is beyond all measure, or an id unset."""
    if not np.all(np.abs(loop.floats) < 1e7):
        return None
    column = dict(zip(_TEXTS, loop.texts, strict=True))
    internal, internals = _codes(column["label_asym_id"])
    author, authors = _codes(column["auth_asym_id"])
    last = np.zeros(len(internals), np.int64)
    last[internal] = author  # of equal indices numpy keeps the last
    polymer = loop.ints[0] != _UNSET_INT
    unset = {".", "?"}
    if unset & {*internals, *authors} or not polymer.any():
        return None
    if (loop.ints[1][polymer] == _UNSET_INT).any():
        return None

    def kept(values: Any) -> Any:
        return values[polymer]

    component, components = _codes(kept(column["label_comp_id"]))
    atom, atoms = _codes(kept(column["label_atom_id"]))
    insertion, insertions = _codes(kept(column["pdbx_PDB_ins_code"]), blank=True)
    altloc, _ = _codes(kept(column["label_alt_id"]), blank=True)
    atom37 = np.array([ATOM_ORDER.get(name, -1) for name in atoms], np.int32)[atom]
    if "MSE" in components:  # the selenium takes the sulphur's place
        selenium = np.array([name.upper() == "SE" for name in atoms], bool)[atom]
        atom37[selenium & (component == components.index("MSE"))] = ATOM_ORDER["SD"]
    return AtomSites(
        internal=kept(internal),
        author=kept(author),
        component=component,
        number=kept(loop.ints[0]),
        author_number=kept(loop.ints[1]),
        insertion=insertion,
        hetero=kept(column["group_PDB"]) == _packed("HETATM"),
        atom37=atom37,
        altloc=altloc,
        occupancy=kept(loop.floats[3]),
        positions=np.ascontiguousarray(loop.floats[:3, polymer].T, np.float32),
        internals=internals,
        authors=authors,
        components=components,
        insertions=insertions,
        author_of={name: authors[last[code]] for code, name in enumerate(internals)},
        b_factor=kept(loop.floats[4]) if len(loop.floats) > 4 else None,
    )


def _packed(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(text.encode(), "little"))


def _codes(
    keys: Shaped[np.ndarray, " A"], blank: bool = False
) -> tuple[Int[np.ndarray, " A"], list[str]]:
    """Codes of packed texts by first appearance; with `blank`, '.' and '?' are code 0."""
    first = np.array([_packed("."), _packed("?")] if blank else [], np.uint64)
    codes, unique = factorise(np.concatenate([first, keys]))
    texts = [int(key).to_bytes(8, "little").rstrip(b"\0").decode("latin-1") for key in unique]
    if not blank:
        return codes, texts
    return np.maximum(codes[2:] - 1, 0).astype(np.int32), ["", *texts[2:]]


@njit(cache=True, nogil=True)
@no_type_check
def factorise(keys: Any) -> Any:
    """Code of each key by first appearance, and the distinct keys."""
    slots = 64
    table = np.full(slots, -1, np.int64)
    unique = np.empty(keys.size, np.uint64)
    codes = np.empty(keys.size, np.int32)
    found = 0
    for i in range(keys.size):
        key = keys[i]
        if i > 0 and key == keys[i - 1]:
            codes[i] = codes[i - 1]
            continue
        slot = np.int64((key * np.uint64(11400714819323198485)) >> np.uint64(40)) & (slots - 1)
        while table[slot] >= 0 and unique[table[slot]] != key:
            slot = (slot + 1) & (slots - 1)
        if table[slot] < 0:
            table[slot] = found
            unique[found] = key
            found += 1
            if 2 * found > slots:
                slots *= 2
                table = np.full(slots, -1, np.int64)
                for j in range(found):
                    place = np.int64(
                        (unique[j] * np.uint64(11400714819323198485)) >> np.uint64(40)
                    ) & (slots - 1)
                    while table[place] >= 0:
                        place = (place + 1) & (slots - 1)
                    table[place] = j
                codes[i] = found - 1
                continue
        codes[i] = table[slot]
    return codes, unique[:found]


@njit(cache=True, nogil=True)
@no_type_check
def loop_end(data: Any, start: Any) -> Any:
    """Where the run of lines that begin with ATOM or HETATM ends; -1 if rows go on."""
    n = data.size
    at = start
    while at + 4 <= n:
        if not (data[at] == 65 and data[at + 1] == 84) and not (
            data[at] == 72 and data[at + 1] == 69
        ):
            break
        while at < n and data[at] != 10:
            at += 1
        at += 1
    at = min(at, n)
    after = at
    while after < n and data[after] in (10, 13, 32, 9):
        after += 1
    # A comment, an item or a new loop ends the table; anything else would be a row.
    if after == n or data[after] == 35 or data[after] == 95 or data[after] == 108:
        return at
    return -1


@njit(cache=True, nogil=True)
@no_type_check
def decimal(data: Any, start: Any, end: Any) -> Any:
    """`(value, ok)` of plain decimal text, rounded as `float` does: both parts are exact."""
    mantissa = np.int64(0)
    digits = 0
    power = 0
    seen_point = False
    negative = data[start] == 45
    if negative or data[start] == 43:
        start += 1
    for i in range(start, end):
        c = data[i]
        if c == 46 and not seen_point:
            seen_point = True
        elif 48 <= c <= 57:
            mantissa = mantissa * 10 + (c - 48)
            digits += 1
            if seen_point:
                power += 1
        else:
            return 0.0, False
    if digits == 0 or digits > 15:
        return 0.0, False
    value = np.float64(mantissa) / 10.0**power
    return (-value if negative else value), True


@njit(cache=True, nogil=True)
@no_type_check
def read_rows(
    data: Any, start: Any, end: Any, places: Any, texts: Any, floats: Any, ints: Any
) -> Any:
    """Fill the columns with the rows of the first model; how many, or -1 if irregular."""
    row = 0
    at = start
    while at < end:
        column = 0
        while at < end and data[at] != 10:
            c = data[at]
            if c == 32 or c == 9 or c == 13:
                at += 1
                continue
            if column >= places.size:
                return -1
            if c == 39 or c == 34:
                first = at + 1
                at = first
                while at < end and not (
                    data[at] == c and (at + 1 >= end or data[at + 1] in (32, 9, 10, 13))
                ):
                    if data[at] == 10:
                        return -1
                    at += 1
                last = at
                at += 1
            else:
                if (c == 59 and column == 0) or c == 35 or c == 95 or c == 36:
                    return -1
                first = at
                while at < end and data[at] not in (32, 9, 10, 13):
                    at += 1
                last = at
            place = places[column]
            column += 1
            if place < 0:
                continue
            if place < 10:
                if last - first > 8 or last == first:
                    return -1
                key = np.uint64(0)
                for i in range(last - 1, first - 1, -1):
                    if data[i] > 127:
                        return -1
                    key = (key << np.uint64(8)) | np.uint64(data[i])
                texts[place, row] = key
            elif place < 20:
                value, ok = decimal(data, first, last)
                if not ok:
                    return -1
                floats[place - 10, row] = value
            elif last - first == 1 and (data[first] == 46 or data[first] == 63):
                ints[place - 20, row] = -(1 << 62)
            else:
                value, ok = decimal(data, first, last)
                if not ok or value != np.floor(value):
                    return -1
                for i in range(first, last):
                    if data[i] == 46:
                        return -1
                ints[place - 20, row] = np.int64(value)
        at += 1
        if column == 0:
            continue
        if column != places.size:
            return -1
        if texts[7, row] != texts[7, 0]:
            return row
        row += 1
    return row

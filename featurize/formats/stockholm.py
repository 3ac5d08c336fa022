"""Stockholm alignments (jackhmmer, hmmsearch): text -> `Msa`."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from evofeed.base.errors import MsaError
from evofeed.base.shapes import Int, UInt8
from evofeed.featurize.config import InputCaps
from evofeed.featurize.formats import msa_kernels as kernels
from evofeed.featurize.formats.a3m import check_size
from evofeed.featurize.formats.msa import Msa
from evofeed.featurize.formats.reading import line_of
from evofeed.protein.residues import MSA_LETTER_TO_RESTYPE

_HEADER: Final = re.compile(rb"(?m)^# STOCKHOLM 1\.")


def parse_stockholm(
    data: bytes, *, path: str = "", strict_letters: bool = False, caps: InputCaps | None = None
) -> Msa:
    """The alignment of a Stockholm file over the columns where its query has a residue.

    The first sequence is the query. Residues in columns where it has a gap are
    insertions, counted at the query's next residue. Sequences may be split over
    blocks; the parts of a name are joined, two rows of one name stay two. Markup
    lines are skipped.

    `strict_letters` refuses '.' and lower-case residues, and cuts rows that are too long, as
    OpenFold does; else '.' is a gap and case does not matter.

    Raises:
        MsaError: no sequence, a line that is not `name residues`, a byte that is not a
            residue, or a row whose length is not the query's; names the line.
    """
    caps = caps or InputCaps()
    if not strict_letters and (num_alignments := len(_HEADER.findall(data))) > 1:
        raise MsaError(
            f"{num_alignments} alignments in one file, each ends with `//`: one chain has one "
            "query, so give each alignment a file in its own chain's folder",
            path=path,
        )
    text = np.frombuffer(data, np.uint8)
    spans, row_of, rows = _layout(data, text, path, strict_letters)
    table = _letter_table(strict_letters)
    column_of = _query_columns(text, spans[row_of == 0], table)
    columns = int(column_of.max(initial=-1)) + 1
    check_size(rows, columns, caps, path)
    letters = np.empty([rows, columns], np.uint8)
    inserted = table
    if strict_letters:  # OpenFold counts every byte that is not a gap, a residue or not
        inserted = np.where(np.arange(256) == ord("-"), ord("-"), ord("X")).astype(np.uint8)
    # Insertions are rare: guess their number, and parse again if there are more.
    deletions = np.empty([max(1024, rows * columns // 32), 3], np.int32)
    while True:
        status, byte, size, row, width = kernels.fill_stockholm(
            text, spans, row_of, column_of, table, inserted, letters, deletions, strict_letters
        )
        if status != kernels.OK or size <= len(deletions):
            break
        deletions = np.empty([size, 3], np.int32)
    if status != kernels.OK:
        byte = byte if byte >= 0 else int(spans[np.flatnonzero(row_of == row)[-1], 0])
        message = _error_message(data, status, byte, row, width, len(column_of))
        raise MsaError(message, path=path, line=line_of(data, byte))
    # The file has them block by block, the record row by row.
    deletions = deletions[:size][np.argsort(deletions[:size, 0], kind="stable")]
    rows_of, columns_of, counts = np.ascontiguousarray(deletions.T)
    return Msa(letters, rows_of, columns_of, counts, data, spans[_first_lines(row_of, rows), :2])


def stockholm_rows(data: bytes) -> tuple[list[tuple[str, str, str]], bool]:
    """Name, description, and letters with insertions and gaps, of every row; and whether the
    file has its end, `//`.

    Raises:
        MsaError: a line that is not `name residues`; names it.
    """
    letters: dict[str, list[str]] = {}
    descriptions: dict[str, str] = {}
    has_end = False
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        words = line.split(maxsplit=3)
        has_end |= line.startswith("//")
        if line.startswith("#=GS") and words[2:3] == ["DE"]:
            descriptions[words[1]] = words[3] if len(words) == 4 else ""
        if not words or line.startswith(("#", "//")):
            continue
        if len(words) != 2:
            raise MsaError(_not_a_row(line), line=number)
        letters.setdefault(words[0], []).append(words[1])
    rows = [(name, descriptions.get(name, ""), "".join(parts)) for name, parts in letters.items()]
    return rows, has_end


def _not_a_row(line: str) -> str:
    return f"expected a name and residues, with no space in either, not {line.strip()[:60]!r}"


def _layout(
    data: bytes, text: UInt8[np.ndarray, " B"], path: str, strict_letters: bool
) -> tuple[Int[np.ndarray, "M 4"], Int[np.ndarray, " M"], int]:
    """Name and residue spans of every line, its row, and the number of rows."""
    spans = np.empty([data.count(b"\n") + data.count(b"\r") + 1, 4], np.int64)
    status, byte, lines = kernels.split_lines(text, spans)
    spans = spans[:lines]
    if status != kernels.OK:
        line = data[data.rfind(b"\n", 0, byte) + 1 :].split(b"\n", 1)[0]
        message = _not_a_row(line.decode("utf-8", "replace"))
        raise MsaError(message, path=path, line=line_of(data, byte))
    if not len(spans):
        raise MsaError("no aligned sequence in it: write it again or remove it", path=path)
    rows, unique = _first_block(data, spans)
    # A name twice in every block is two sequences; OpenFold, and the format, join them.
    by_position = unique or (rows < len(spans) and not strict_letters)
    if by_position and kernels.same_names(text, spans, rows):
        return spans, np.arange(len(spans)) % rows, rows
    row_of_name: dict[bytes, int] = {}
    names = [data[a:b] for a, b in spans[:, :2].tolist()]
    row_of = [row_of_name.setdefault(name, len(row_of_name)) for name in names]
    return spans, np.array(row_of, np.int64), len(row_of_name)


def _first_block(data: bytes, spans: Int[np.ndarray, "M 4"]) -> tuple[int, bool]:
    """Number of lines before the first blank one, and whether their names all differ."""
    blank_line = b"\n\r\n" if b"\r\n" in data[: int(spans[0, 3]) + 2] else b"\n\n"
    end = data.find(blank_line, int(spans[0, 3]))
    rows = len(spans) if end < 0 else int(np.searchsorted(spans[:, 0], end))
    names = {data[a:b] for a, b in spans[:rows, :2].tolist()}
    return rows, len(names) == rows


def _first_lines(row_of: Int[np.ndarray, " M"], rows: int) -> Int[np.ndarray, " N"]:
    """Line of each row in the first block that has it."""
    first = np.full(rows, -1, np.int64)
    first[row_of[::-1]] = np.arange(len(row_of) - 1, -1, -1)
    return first


def _query_columns(
    text: UInt8[np.ndarray, " B"], query: Int[np.ndarray, "Q 4"], table: UInt8[np.ndarray, "256"]
) -> Int[np.ndarray, " W"]:
    """Column of the query for each column of the file, -1 where the query has a gap."""
    row = np.concatenate([text[start:end] for _, _, start, end in query.tolist()])
    is_residue = table[row] != ord("-")
    return np.where(is_residue, np.cumsum(is_residue) - 1, -1)


def _letter_table(strict_letters: bool) -> UInt8[np.ndarray, "256"]:
    """Letter or gap that each byte stands for, else `INVALID`."""
    table = np.full(256, kernels.INVALID, np.uint8)
    letters = np.flatnonzero(MSA_LETTER_TO_RESTYPE != 255)
    table[letters] = letters
    if not strict_letters:
        table[ord("a") : ord("z") + 1] = np.arange(ord("A"), ord("Z") + 1)
        table[ord(".")] = ord("-")
    return table


def _error_message(data: bytes, status: int, byte: int, row: int, width: int, columns: int) -> str:
    if status == kernels.BAD_LETTER:
        return f"{chr(data[byte])!r} is not a residue letter (row {row + 1}, column {width})"
    return f"row {row + 1} is {width} columns wide, the query {columns}"

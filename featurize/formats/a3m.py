"""A3M and aligned FASTA: text -> `Msa`."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from evofeed.base.errors import MsaError
from evofeed.base.shapes import UInt8
from evofeed.featurize.config import InputCaps
from evofeed.featurize.formats import msa_kernels as kernels
from evofeed.featurize.formats.colabfold_a3m import assembly_of
from evofeed.featurize.formats.msa import Msa
from evofeed.featurize.formats.reading import line_of
from evofeed.protein.residues import MSA_LETTER_TO_RESTYPE

_ANNOTATION: Final = re.compile(rb"(?m)^>(?:ss|sa|aa)_(?:pred|conf|dssp)\b[^>]*")


def parse_a3m(
    data: bytes, *, path: str = "", strict_letters: bool = False, caps: InputCaps | None = None
) -> Msa:
    """The alignment of an a3m file, its first record being the query.

    Lower-case letters are insertions relative to the query; they vanish and are
    counted at the next column, `AggC` counts 2 at `C`. Insertions after the last
    column are dropped (AF2 SI 1.2.1). Blank lines and lines with `#` are skipped, and
    hh-suite's rows of secondary structure, which are counted. `strict_letters` refuses
    '.', which else is padding in insertion columns.

    Raises:
        MsaError: no record, residues before the first header, a byte that is not a
            residue, or a row whose length is not the query's; names the line.
    """
    caps = caps or InputCaps()
    if not strict_letters and data.endswith(b"\0"):
        data = data.rstrip(b"\0")  # mmseqs and ColabFold end each entry with NUL
    _refuse_complex(data, path)
    dropped: tuple[str, ...] = ()
    if not strict_letters:
        data, skipped = without_annotation(data)
        dropped = (f"{skipped} rows of secondary structure skipped",) if skipped else ()
    text = np.frombuffer(data, np.uint8)
    table = _byte_classes(strict_letters)
    rows, columns, runs = kernels.count_a3m(text, table)
    check_size(rows, columns, caps, path)
    letters = np.empty([rows, columns], np.uint8)
    names = np.empty([rows, 2], np.int64)
    deletions = np.empty([3, runs], np.int32)  # row, column and count of each
    status, byte, size, row, width = kernels.fill_a3m(text, table, letters, names, deletions)
    if status != kernels.OK:
        message = _error_message(data, status, byte, row, width, columns)
        raise MsaError(message, path=path, line=line_of(data, byte))
    rows_of, columns_of, counts = deletions[:, :size]
    return Msa(letters, rows_of, columns_of, counts, data, names, dropped)


def a3m_rows(data: bytes) -> list[tuple[str, str]]:
    """Header, and letters with insertions and gaps, of every row of an a3m."""
    records = data.decode("utf-8", "replace").lstrip().removeprefix(">").split("\n>")
    split = (record.partition("\n") for record in records)
    return [(header.strip(), "".join(body.split())) for header, _, body in split]


def without_annotation(data: bytes) -> tuple[bytes, int]:
    """An a3m without hh-suite's rows of secondary structure, and their number.

    `addss.pl` puts `>ss_pred`, `>ss_conf` and `>ss_dssp` before the query. Line numbers stay.
    """
    if not any(mark in data for mark in (b">ss_", b">sa_", b">aa_")):
        return data, 0
    return _ANNOTATION.subn(lambda match: b"\n" * match[0].count(b"\n"), data)


def _refuse_complex(data: bytes, path: str) -> None:
    """Raises for ColabFold's alignment of a complex, whose columns are those of several chains."""
    assembly = assembly_of(data[:4096]) if data[:1] == b"#" else None
    if assembly is not None and len(assembly.lengths) > 1:
        raise MsaError(
            f"ColabFold's alignment of a complex ({assembly}), not of one chain: give the file, or "
            "a folder of <name>.a3m files with it, as INPUT, and it is split into its chains",
            path=path,
            line=1,
        )


def check_size(rows: int, columns: int, caps: InputCaps, path: str) -> None:
    """Refuses empty and oversized alignments before anything is allocated."""
    if rows == 0 or columns == 0:
        raise MsaError("no aligned sequence in it: write it again or remove it", path=path)
    for unit, size in (("rows", rows), ("columns", columns), ("cells", rows * columns)):
        if message := caps.excess(f"max_{unit}", size, f"{size} {unit}"):
            raise MsaError(message, path=path)


def _byte_classes(strict_letters: bool) -> UInt8[np.ndarray, "256"]:
    """Class of each byte as `msa_kernels` defines them; a residue's is its letter."""
    table = np.full(256, kernels.INVALID, np.uint8)
    letters = np.flatnonzero(MSA_LETTER_TO_RESTYPE != 255)
    table[letters] = letters
    table[ord("a") : ord("z") + 1] = kernels.INSERTION
    if not strict_letters:
        table[ord(".")] = kernels.SKIP
    return table


def _error_message(data: bytes, status: int, byte: int, row: int, width: int, columns: int) -> str:
    if status == kernels.NO_HEADER:
        return "residues before the first '>' header"
    if status == kernels.BAD_LETTER:
        if data[byte] == 0:
            return "a NUL byte amid the rows: several mmseqs entries in one file, split them"
        return f"{chr(data[byte])!r} is not a residue letter (row {row + 1}, column {width + 1})"
    return f"row {row + 1} has {width} aligned columns, the query has {columns}"

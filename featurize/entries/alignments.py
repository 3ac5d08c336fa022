"""Alignment files of one query -> `Alignment`: all rows of all files, named by the sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError, MsaError
from evofeed.featurize.entries.templates import is_hits_file
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.msa import Msa
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Npz
from evofeed.featurize.formats.reading import (
    file_ref,
    files_below,
    plain,
    read_bytes,
    read_head,
    xxh3,
)
from evofeed.featurize.formats.species import pairing_species
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.queries import query_of as query_in
from evofeed.protein.alignment import Alignment, letter_codes
from evofeed.protein.chain_files import with_insertions
from evofeed.protein.datapoints import alignment_name

SUFFIXES: Final = (".a3m", ".sto", ".hhr")
_HEAD: Final = 1 << 16
"""Bytes in which a query usually ends."""
_BOLTZ_LETTERS: Final = np.frombuffer(b"X-ARNDCQEGHILKMFPSTWYVX", np.uint8)
"""Letter of each of Boltz's tokens: padding, gap, the twenty, unknown; others are nucleic acids."""
RNA_SOURCES: Final = "rna rfam_hits rnacentral_hits nt_hits nucleotide_collection_hits".split()
"""Names of files whose query is RNA if it has only RNA's letters."""


def alignment_folders(
    root: str | Path, only: Iterable[Path] | None = None
) -> list[tuple[str, ...]]:
    """Alignment files by query, sorted, template hits last: those below a folder, or `only` those.
    A folder has one query, and so has a file or folder that Boltz or OpenFold3 prepared."""
    groups: dict[Path, list[str]] = {}
    for path in files_below(root) if only is None else only:
        if plain(path.name).endswith(SUFFIXES):
            groups.setdefault(path.parent, []).append(str(path))
        elif path.suffix == ".npz" or path.is_dir():
            groups[path] = [str(path)]
    ordered = (sorted(files, key=is_hits_file) for _, files in sorted(groups.items()))
    return [tuple(files) for files in ordered if not is_hits_file(files[0])]


def query_of(path: str) -> str:
    """The query of an alignment file, from its beginning where that is enough.

    Raises:
        InputError: the file is not an alignment.
    """
    if path.endswith(".npz"):
        _name, data, _is_stockholm = next(_alignment_texts(path, max_rows=1))
        return query_in(data, "a3m", path=path)
    ref, is_stockholm = file_ref(path), plain(path).endswith(".sto")
    head = b"" if is_stockholm else read_head(ref, _HEAD)
    data = head if b"\n>" in head[1:] else read_bytes(ref)
    return query_in(data, "stockholm" if is_stockholm else "a3m", path=path)


def read_alignment(files: Sequence[str]) -> Alignment:
    """All rows of the files of one query, named by its sequence; template hits are skipped.

    Raises:
        InputError: a file is not an alignment or has another query; names file and line.
    """
    paths = [path for path in files if not is_hits_file(path)]
    texts = [(path, *text) for path in paths for text in _alignment_texts(path)]
    parsed = [(path, *_parsed_rows(data, path, is_sto)) for path, _, data, is_sto in texts]
    query = parsed[0][1].query
    sources = tuple(name for _, name, *_ in texts)
    is_rna = sources[0] in RNA_SOURCES and set(query) <= set("ACGUTN")
    distinct: dict[bytes, int] = {}
    keys: dict[str, int] = {}
    rows: list[int] = []
    gapless: list[int] = []
    may_repeat = sources != ("boltz",)  # Boltz's rows are distinct and have no insertions
    for path, msa, gapless_keys in parsed:
        if msa.query != query or msa.letters.shape[1] != len(query):
            reason = f"its query has gaps, or is not that of {files[0]}"
            raise MsaError(reason, path=path, line=1)
        codes = letter_codes(msa.letters)
        rows += [distinct.setdefault(row.tobytes(), len(distinct)) for row in codes]
        gapless += [keys.setdefault(text, len(keys)) for text in gapless_keys]
    species = [pairing_species(name) for _, msa, _ in parsed for name in msa.descriptions()]
    names = sorted({label for label in species if label})
    rank = {name: number for number, name in enumerate(names)} | {"": -1}
    sizes = [len(msa.letters) for _, msa, _ in parsed]
    counts = np.concatenate(
        [np.bincount(msa.deletion_row, minlength=len(msa.letters)) for _, msa, _ in parsed]
    )
    letters = np.frombuffer(b"".join(distinct), np.uint8).reshape(len(distinct), len(query))
    return Alignment(
        name=alignment_name(query, is_rna=is_rna),
        sources=sources,
        letters=letters,
        row_letters=np.array(rows, np.int32),
        row_source=np.repeat(np.arange(len(parsed)), sizes).astype(np.int32),
        row_species=np.array([rank[label] for label in species], np.int32),
        row_gapless=np.array(gapless, np.int64) if may_repeat else np.arange(len(rows)),
        species=tuple(names),
        deletion_start=np.append(0, np.cumsum(counts)).astype(np.int64),
        deletion_column=np.concatenate([msa.deletion_column for _, msa, _ in parsed]),
        deletion_count=np.concatenate([msa.deletion_count for _, msa, _ in parsed]),
    )


def _alignment_texts(path: str, max_rows: int | None = None) -> Iterator[tuple[str, bytes, bool]]:
    """Source, text and `is_stockholm` of every alignment in a file, `max_rows` rows of arrays."""
    if path.endswith(".npz"):
        yield from ((name, text, False) for name, text in _array_alignments(path, max_rows))
        return
    name = Path(plain(path)).stem
    is_rna = name == f"{Path(path).parent.name}_all"  # as Protenix names it
    yield "rna" if is_rna else name, read_bytes(file_ref(path)), plain(path).endswith(".sto")


def _array_alignments(path: str, max_rows: int | None) -> Iterator[tuple[str, bytes]]:
    """Source and a3m text of every alignment in a file of arrays by Boltz or OpenFold3."""
    try:
        tables = Npz(read_bytes(file_ref(path)), path)
        if "sequences" in tables:
            yield "boltz", _boltz_rows(tables, max_rows)
            return
        for name in sorted(tables):
            yield name, _openfold3_rows(tables[name], max_rows)
    except InputError as error:
        raise MsaError(error.message, path=path) from None
    except TABLE_ERRORS as error:
        raise MsaError(f"not an alignment of arrays: {error!r}"[:300], path=path) from None


def _boltz_rows(tables: Mapping[str, Any], max_rows: int | None) -> bytes:
    codes, deletions, rows = tables["residues"], tables["deletions"], tables["sequences"][:max_rows]
    codes = codes["res_type"][: rows["res_end"].max(initial=0)]
    letters = _BOLTZ_LETTERS[np.minimum(codes.astype(np.int64), 22)]
    lines = []
    for number, row in enumerate(rows):
        deleted = deletions[row["del_start"] : row["del_end"]]
        taxon = int(row["taxonomy"])
        name = f"row{number} TaxID={taxon}" if taxon >= 0 else f"row{number}"
        aligned = letters[row["res_start"] : row["res_end"]]
        lines.append(_a3m_row(name, aligned, deleted["res_idx"], deleted["deletion"]))
    return b"".join(lines)


def _openfold3_rows(table: Mapping[str, Any], max_rows: int | None) -> bytes:
    msa, deletions = np.asarray(table["msa"]), np.asarray(table["deletion_matrix"])
    if msa.dtype.kind != "U" or msa.ndim != 2 or deletions.shape != msa.shape:
        raise ValueError(f"msa {msa.dtype}{list(msa.shape)}, deletions {list(deletions.shape)}")
    codes = np.ascontiguousarray(msa.astype("<U1")).view(np.uint32).reshape(msa.shape)
    codes = np.where((codes >= ord("a")) & (codes <= ord("z")), codes - 32, codes)[:max_rows]
    names = [str(name) for name in np.asarray(table["metadata"]).reshape(-1).tolist()]
    if len(names) != len(msa):
        names = [f"row{number}" for number in range(len(msa))]
    lines = []
    for name, row, counts in zip(names, codes.astype(np.uint8), deletions, strict=False):
        columns = np.flatnonzero(counts)
        lines.append(_a3m_row(" ".join(name.split()), row, columns, counts[columns]))
    return b"".join(lines)


def _a3m_row(name: str, letters: np.ndarray, columns: np.ndarray, counts: np.ndarray) -> bytes:
    """A row of a3m with `counts` residues inserted before `columns`."""
    inserted = zip(columns.tolist(), counts.tolist(), strict=True)
    text = with_insertions(letters.tobytes(), inserted)
    return b">%s\n%s\n" % (name.encode("utf-8", "replace"), text)


def _parsed_rows(data: bytes, path: str, is_stockholm: bool) -> tuple[Msa, list[str]]:
    """Rows, and a hash of each without its gaps."""
    if is_stockholm:
        msa = parse_stockholm(data, path=path)
        return msa, [xxh3(_upper(row.tobytes())) for row in msa.letters]
    msa = parse_a3m(data, path=path)
    stops = [*(int(start) - 1 for start, _ in msa.names[1:]), len(msa.text)]
    bodies = (msa.text[int(n[1]) : stop] for n, stop in zip(msa.names, stops, strict=True))
    return msa, [xxh3(_upper(body)) for body in bodies]


def _upper(body: bytes) -> bytes:
    return body.translate(None, b"-.\r\n \t").upper()

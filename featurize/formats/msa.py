"""A parsed alignment, and the merge of several into one MSA of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from xxhash import xxh3_128_digest

from evofeed.base.errors import MsaError
from evofeed.base.shapes import Int, UInt8
from evofeed.featurize.formats import msa_kernels as kernels
from evofeed.featurize.formats.species import species_of
from evofeed.protein.residues import MSA_LETTER_TO_RESTYPE

_UNIPROT_PREFIXES: Final = np.array([list(b"tr|"), list(b"sp|")], np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Msa:
    """One alignment file: rows over the query's columns, the query first.

    Attributes:
        letters: ASCII letters A-Z and '-'.
        deletion_row: MSA row of each non-zero deletion, ascending.
        deletion_column: its column, ascending within a row.
        deletion_count: residues deleted left of that column.
        text: content of the file, which `names` refers to.
        names: start and end of each row's header in `text`.
        dropped: a note on each kind of rows left out.
    """

    letters: UInt8[np.ndarray, "N L"]
    deletion_row: Int[np.ndarray, " K"]
    deletion_column: Int[np.ndarray, " K"]
    deletion_count: Int[np.ndarray, " K"]
    text: bytes
    names: Int[np.ndarray, "N 2"]
    dropped: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """The first row without gaps."""
        row: bytes = self.letters[0].tobytes()
        return row.decode("ascii").replace("-", "")

    def descriptions(self) -> list[str]:
        """Header of every row."""
        return [self.text[a:b].decode("utf-8", "replace") for a, b in self.names.tolist()]

    def sequences(self) -> list[str]:
        """Aligned rows as text."""
        return [row.tobytes().decode("ascii") for row in self.letters]

    def species(self) -> list[str]:
        """UniProt species mnemonic of every row, '' where the header has none."""
        species = [""] * len(self.names)
        rows = np.flatnonzero(self.names[:, 1] - self.names[:, 0] > len("tr|"))
        text = np.frombuffer(self.text, np.uint8)
        prefix = text[self.names[rows, :1] + np.arange(3)]
        for row in rows[(prefix[:, None] == _UNIPROT_PREFIXES).all(-1).any(-1)].tolist():
            start, end = self.names[row].tolist()
            species[row] = species_of(self.text[start:end].decode("utf-8", "replace"))
        return species


def single_row(sequence: str) -> Msa:
    """The alignment of a chain without alignment files: its own sequence, letters A-Z."""
    letters = np.frombuffer(sequence.encode("ascii"), np.uint8).copy()[None]
    none = np.zeros(0, np.int32)
    return Msa(letters, none, none, none, b"", np.zeros([1, 2], np.int64))


def merge(
    msas: Sequence[Msa], *, species: Sequence[str] | None = None, unique: bool = True
) -> dict[str, Any]:
    """One MSA of several alignments of the same query, as the fields of a chain record.

    Rows keep their order; of rows with the same letters the first stays, its
    deletions and species with it (AF2 SI 1.2.2). Letters, not codes: `B` and
    `D` share a code yet stay two rows, as in AF2.

    Args:
        species: of every row, if not by its header.
        unique: False keeps rows with the same letters.

    Raises:
        MsaError: the alignments differ in length.
    """
    columns = msas[0].letters.shape[1]
    if len(msas) > 255:
        raise MsaError(f"{len(msas)} alignments for one chain, at most 255")
    for index, width in enumerate(msa.letters.shape[1] for msa in msas):
        if width != columns:
            raise MsaError(f"alignment {index} has {width} columns, the first has {columns}")
    letters = msas[0].letters if len(msas) == 1 else np.concatenate([m.letters for m in msas])
    selected = np.arange(len(letters))
    if unique:
        first_rows: dict[bytes, int] = {}
        for number, row in enumerate(letters):
            first_rows.setdefault(xxh3_128_digest(row), number)
        selected = np.array(list(first_rows.values()))
    msa, counts = kernels.encode(letters, selected, MSA_LETTER_TO_RESTYPE)
    num_rows = [len(m.letters) for m in msas]
    offsets = np.cumsum([0, *num_rows[:-1]])
    new_row = np.full(len(letters), -1, np.int32)
    new_row[selected] = np.arange(len(selected), dtype=np.int32)
    old_rows = [m.deletion_row + offset for m, offset in zip(msas, offsets, strict=True)]
    deletion_row = new_row[np.concatenate(old_rows)]
    retained = deletion_row >= 0
    if species is None:
        species = [name for m in msas for name in m.species()]
    return {
        "msa": msa,
        "deletion_row": deletion_row[retained],
        "deletion_column": np.concatenate([m.deletion_column for m in msas])[retained],
        "deletion_count": np.concatenate([m.deletion_count for m in msas])[retained],
        "msa_source": np.repeat(np.arange(len(msas), dtype=np.uint8), num_rows)[selected],
        "msa_species": tuple(species[row] for row in selected.tolist()),
        "hhblits_profile_counts": counts,
    }

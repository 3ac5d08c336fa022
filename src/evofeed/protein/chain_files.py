"""Records of chains and complexes as files for other programs: FASTA, a3m, mmCIF, npz."""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from evofeed.protein.assembly_record import AssemblyRecord, chain_numbers
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import RECORD
from evofeed.protein.residues import MSA_LETTERS
from evofeed.protein.structure_text import Structure, to_mmcif

_WIDTH = 80


def fasta_text(name: str, sequence: str, words: str = "") -> str:
    """One FASTA entry, 80 letters a line."""
    lines = [sequence[i : i + _WIDTH] for i in range(0, len(sequence), _WIDTH)]
    return "\n".join([f">{name} {_one_line(words)}".rstrip(), *lines, ""])


def to_fasta(record: ChainRecord) -> str:
    """The chain's sequence."""
    return fasta_text(record.chain_id, record.sequence, record.description)


def to_a3m(record: ChainRecord) -> bytes:
    """The chain's alignment, its rows in the record's order.

    A record has the number of inserted residues but not their letters: each is written as `x`.
    It has no names of rows: a name is made of row number, source and species.
    """
    rows = rows_with_insertions(
        MSA_LETTERS[record.msa], record.deletion_row, record.deletion_column, record.deletion_count
    )
    return b"".join(b">%s\n%s\n" % (_row_name(record, i).encode(), r) for i, r in enumerate(rows))


def to_cif(record: ChainRecord) -> str:
    """The chain's structure as mmCIF; `ValueError` if it has none."""
    return assembly_cif(AssemblyRecord.of_chain(record))


def assembly_fasta(record: AssemblyRecord) -> str:
    """The sequence of every chain, copies included, under its author's id."""
    return "".join(
        fasta_text(f"{record.assembly_id}_{name}", chain.sequence, chain.description)
        for chain, name in record.members
    )


def assembly_cif(record: AssemblyRecord) -> str:
    """Every chain's atoms as mmCIF; `ValueError` if it has no structure."""
    return to_mmcif(assembly_structure(record))


def assembly_structure(record: AssemblyRecord) -> Structure:
    """Every chain's atoms, residues numbered by the sequence, the B column 0.

    Chains have their author's ids, or letters if an id would need quotes in mmCIF.

    Raises:
        ValueError: it has no structure.
    """
    if record.all_atom_positions is None or record.all_atom_mask is None:
        raise ValueError(f"{record.assembly_id} has no structure")
    entities = chain_numbers([len(names) for names in record.copies])[1]
    lengths = [chain.num_res for chain, _ in record.members]
    return Structure(
        name=record.assembly_id,
        aatype=record.aatype,
        residue_index=np.concatenate([np.arange(length) for length in lengths]),
        positions=record.all_atom_positions,
        mask=record.all_atom_mask,
        confidence=np.zeros(record.num_res),
        chain=record.asym_id(),
        entity=np.repeat(entities, lengths),
        chain_names=record.chain_names,
    )


def to_npz(record: ChainRecord) -> bytes:
    """The arrays of `RECORD` by name, as a compressed `.npz`."""
    arrays = {feature.name: getattr(record, feature.name) for feature in RECORD}
    arrays = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _row_name(record: ChainRecord, row: int) -> str:
    if row == 0:
        return record.chain_id
    source = record.msa_sources[record.msa_source[row]] if record.msa_sources else ""
    species = record.msa_species[row] if row < len(record.msa_species) else ""
    words = [f"row{row}", f"source={source}" if source else ""]
    words.append(f"species={species}" if species else "")
    return _one_line(" ".join(word for word in words if word))


def with_insertions(row: bytes, insertions: Iterable[tuple[int, int]]) -> bytes:
    """An aligned row with `x` inserted; `insertions` are column and count, in order of columns."""
    parts, last = [], 0
    for column, count in insertions:
        parts += [row[last:column], b"x" * count]
        last = column
    return b"".join([*parts, row[last:]])


def rows_with_insertions(
    letters: np.ndarray, row: np.ndarray, column: np.ndarray, count: np.ndarray
) -> list[bytes]:
    """Aligned rows `u8[N, L]` with their insertions, which are ordered by row, then column."""
    bounds = np.searchsorted(row, np.arange(len(letters) + 1)).tolist()
    cells = list(zip(column.tolist(), count.tolist(), strict=True))
    return [
        with_insertions(line.tobytes(), cells[first:last])
        for line, (first, last) in zip(letters, pairwise(bounds), strict=True)
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""Protein chains by author's ids: of legacy PDB files, and of mmCIF files without labels.

A chain consists of its amino acids: those of the full sequence where the file has it, on which the
observed residues are placed, else the observed ones. Waters, ligands and nucleotides are left out
and listed. All records of one author's id are one chain, adjacent or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.base.shapes import Bool, Int
from evofeed.featurize.config import InputCaps
from evofeed.featurize.structures.atom_sites import PlacedRows
from evofeed.featurize.structures.atom_table import AtomTable, Coded
from evofeed.featurize.structures.residue_names import (
    is_amino_acid,
    is_nucleotide,
    is_water,
    model_letter,
    standard_letter,
)
from evofeed.featurize.structures.seqres import Residue, matches_sequence, place_on_sequence

Rows = Int[np.ndarray, " A"]
"""Some rows of an atom table; or a number for each of them."""
Mask = Bool[np.ndarray, " A"]

_BACKBONE: Final = ("N", "CA", "C")
_BONDED: Final = (0.8, 2.0)
"""Ångström between C and the N of the next residue; a peptide bond has 1.33."""
_NO_SEQUENCE: Final = "no full sequence in the file"
_MAX_LISTED: Final = 6
"""Residue names, or gaps, that a note lists."""


class FullSequence(NamedTuple):
    """Residue names of a chain in the file's sequence records, unobserved residues included.

    Attributes:
        missing: residues that the file lists as not observed.
        source: table or record of the sequence, for notes.
    """

    names: Sequence[str]
    missing: Sequence[Residue] = ()
    source: str = "SEQRES"


def author_chains(
    table: AtomTable,
    sequences: Mapping[str, FullSequence],
    caps: InputCaps,
    modified: frozenset[str] = frozenset(),
) -> tuple[dict[str, PlacedRows], dict[str, str]]:
    """The protein chains of an atom table by author's id, in the order of the file; and a list of
    the residues of each other chain. `modified` are residue names that the file declares to be
    amino acids.

    Raises:
        MmcifError: a chain is too long.
    """
    proteins, others = {}, {}
    for code, name in enumerate(table.chain.names):
        rows = np.flatnonzero(table.chain.codes == code)
        if not len(rows):
            continue
        placed, left_out = _chain(name, rows, table, sequences.get(name), modified)
        size = len(placed.sequence)
        if message := caps.excess("max_columns", size, f"chain {name} has {size} residues"):
            raise MmcifError(message)
        if placed.sequence:
            proteins[name] = placed
        else:
            others[name] = left_out or "no atom"
    return proteins, others


class Residues(NamedTuple):
    """Residues of some records of a table, in the order of their first records."""

    table: AtomTable
    rows: Rows
    ordinal: Rows
    """Number, from 0, of the residue of each record."""
    first_row: Int[np.ndarray, " R"]
    """Row of each residue's first record."""

    def names(self) -> list[str]:
        """Name of each residue in its first record."""
        component = self.table.component
        return [component.names[code] for code in component.codes[self.first_row].tolist()]

    def having(self, records: Mask) -> Bool[np.ndarray, " R"]:
        """Mask of the residues that have any of these records."""
        counts: np.ndarray = np.bincount(self.ordinal, records, minlength=len(self.first_row))
        return np.asarray(counts > 0)

    def bonded(self) -> Bool[np.ndarray, " B"]:
        """True for residues, but the last, that have a peptide bond to the next one."""
        xyz = {}
        for name in ("C", "N"):
            is_atom = self.table.atom.codes[self.rows] == self.table.atom.code(name)
            xyz[name] = np.full([len(self.first_row), 3], np.nan)
            xyz[name][self.ordinal[is_atom]] = self.table.xyz[self.rows[is_atom]]
        distances = np.linalg.norm(xyz["N"][1:] - xyz["C"][:-1], axis=-1)
        low, high = _BONDED
        return np.asarray((distances > low) & (distances < high))  # False for NaN


def residues_of(rows: Rows, table: AtomTable, *columns: Int[np.ndarray, " T"]) -> Residues:
    """Residues of records by number, insertion code and further columns of the table."""
    columns = (table.author_number, table.insertion.codes, *columns)
    keys = np.stack([column[rows] for column in columns], -1)
    _, first, ordinal = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return Residues(table, rows, np.argsort(order)[ordinal.reshape(-1)], rows[first[order]])


def _chain(
    name: str,
    rows: Rows,
    table: AtomTable,
    full: FullSequence | None,
    modified: frozenset[str],
) -> tuple[PlacedRows, str]:
    """A chain, without sequence if it is not a protein, and a list of its other residues."""
    ters = table.ters[np.isin(table.ters - 1, rows)]
    member = _members(rows, table, ters, modified, full.names if full else ())
    left_out = residue_list(rows[~member], table)
    rows = rows[member]
    notes = [f"{left_out}: no residues of the chain"] if left_out else []
    observed, absent = residues_of(rows, table), table.absent[rows]
    index, numbers, names = None, None, []
    if full is not None and len(rows):
        names = list(full.names)
        index = _on_sequence(observed, full, notes)
    if index is None:
        has_atoms = observed.having(table.atom37[rows] >= 0)
        index = np.where(has_atoms, np.cumsum(has_atoms) - 1, -1)
        residues = residues_of(rows[has_atoms[observed.ordinal]], table)
        names = residues.names()
        numbers = _gapped_numbers(residues, notes)
        breaks = int((ters <= residues.first_row[-1]).sum()) if names else 0
        if breaks:
            notes.append(f"{breaks} TER records inside one chain id: it may be several chains")
    positions = index[observed.ordinal]
    prefer = _preferred_names(rows, positions, table, names)
    present = (positions >= 0) & ~absent
    rows, positions = rows[present], positions[present]
    codes = (table.component.codes, table.atom.codes, table.altloc)
    atoms = np.stack([positions, *(column[rows] for column in codes)], -1)
    duplicates = len(rows) - len(np.unique(atoms, axis=0))
    if duplicates:
        notes.append(f"{duplicates} atoms there twice")
    sequence = "".join(map(model_letter, names)) if len(rows) else ""
    placed = PlacedRows(
        chain_id=name,
        sequence=sequence,
        rows=rows,
        index=positions,
        prefer=prefer,
        absent=int(absent.sum()),
        residue_index=numbers,
        notes=tuple(notes),
    )
    return placed, left_out


def _members(
    rows: Rows,
    table: AtomTable,
    ters: Int[np.ndarray, " T"],
    modified: frozenset[str],
    names: Collection[str],
) -> Mask:
    """Mask of the records of the chain's residues.

    Amino acids, residues named in the full sequence, and unknown residues with a backbone between
    them; never water. Ligands that are amino acids follow the chain as HETATM: after its TER
    record, or without one not bonded to it.
    """
    component = Coded(table.component.codes[rows], table.component.names)
    hetero = table.hetero[rows]
    amino = component.where(lambda name: is_amino_acid(name) or name in modified)
    water = component.where(is_water)
    member = amino | component.where(set(names).__contains__)
    unknown = ~(member | water | component.where(is_nucleotide))
    if unknown.any():
        residues = residues_of(rows[unknown], table)
        atoms = [table.atom.codes[residues.rows] == table.atom.code(name) for name in _BACKBONE]
        has_backbone = np.all([residues.having(records) for records in atoms], axis=0)
        last = rows[amino].max(initial=-1)
        member[unknown] = has_backbone[residues.ordinal] & (residues.rows < last)
    member &= ~water
    if len(ters):
        return np.asarray(member & ~(hetero & (rows >= ters[-1])))
    last = rows[member & ~hetero].max(initial=-1)
    # A modified residue with a letter is part of a chain; others may be free ligands.
    may_be_free = component.where(
        lambda name: standard_letter(name) != "X" or model_letter(name) == "X"
    )
    after_chain = member & may_be_free & (rows > last)
    if last >= 0 and after_chain.any():
        residues = residues_of(rows[member], table)
        is_free = np.isin(residues.first_row, rows[after_chain])
        is_free &= ~np.append(False, residues.bonded())
        member[member] = ~is_free[residues.ordinal]
    return np.asarray(member)


def residue_list(rows: Rows, table: AtomTable) -> str:
    """Count and name of the residues of some records, the most frequent first: `2 HOH, 1 ATP`."""
    counts = residue_counts(rows, table).most_common()
    texts = [f"{count} {name}" for name, count in counts[:_MAX_LISTED]]
    remainder = sum(count for _, count in counts[_MAX_LISTED:])
    return ", ".join([*texts, f"{remainder} others"] if remainder else texts)


def residue_counts(rows: Rows, table: AtomTable) -> Counter[str]:
    """Number of residues of each name among some records."""
    return Counter(residues_of(rows, table, table.component.codes).names())


def _on_sequence(
    residues: Residues, full: FullSequence, notes: list[str]
) -> Int[np.ndarray, " R"] | None:
    """Position in the full sequence of each observed residue; None, and a note, if they differ
    too much."""
    names, table, first_row = residues.names(), residues.table, residues.first_row
    insertions = [table.insertion.names[code] or " " for code in table.insertion.codes[first_row]]
    observed = list(zip(table.author_number[first_row].tolist(), insertions, names, strict=True))
    size, source = len(names), full.source
    index = place_on_sequence(observed, full.names, full.missing)
    if index is None:
        notes.append(f"{source} has {len(full.names)} residues, too many to align {size} seen")
        return None
    if not matches_sequence(index, names, full.names):
        notes.append(
            f"{source} has other residues than the {size} seen: the sequence is what is seen"
        )
        return None
    placed = np.flatnonzero(index >= 0)
    if differing := sum(names[i] != full.names[index[i]] for i in placed):
        notes.append(f"{differing} residues are others than {source} says")
    if len(placed) < size:
        notes.append(f"{size - len(placed)} residues are not in {source}")
    return index


def _gapped_numbers(residues: Residues, notes: list[str]) -> Int[np.ndarray, " R"] | None:
    """Residue numbers from 0 that step over gaps, with a note on them; None without a gap.

    A gap is a step of the author's numbers between residues that no peptide bond joins: some
    numberings skip numbers where nothing is missing.
    """
    if not len(residues.first_row):
        return None
    author_numbers = residues.table.author_number[residues.first_row]
    steps = np.where(residues.bonded(), 1, np.maximum(np.diff(author_numbers), 1))
    gaps = np.flatnonzero(steps > 1).tolist()
    if not gaps:
        notes.append(f"{_NO_SEQUENCE}: the sequence is what is seen")
        return None
    texts = [f"{steps[gap] - 1} after {author_numbers[gap]}" for gap in gaps[:_MAX_LISTED]]
    more = ", …" if len(gaps) > _MAX_LISTED else ""
    notes.append(
        f"{_NO_SEQUENCE}, and {len(gaps)} gaps in the numbers ({', '.join(texts)}"
        f"{more}): the residues there are unknown, residue_index steps over them"
    )
    numbers = np.concatenate([[0], np.cumsum(steps)])
    if numbers[-1] > np.iinfo(np.int32).max:
        raise MmcifError(f"residue numbers span {numbers[-1]}: not the numbers of one chain")
    return numbers.astype(np.int32)


def _preferred_names(
    rows: Rows, positions: Rows, table: AtomTable, names: Sequence[str]
) -> dict[int, str]:
    """The sequence's name, else the first one, by position with atoms of several residue names."""
    code, size = table.component.codes[rows], len(table.component.names)
    inside = positions >= 0
    pairs = np.unique(positions[inside] * size + code[inside])
    distinct, counts = np.unique(pairs // size, return_counts=True)
    preferred = {}
    for position in distinct[counts > 1].tolist():
        present = [table.component.names[c] for c in code[positions == position]]
        preferred[position] = names[position] if names[position] in present else present[0]
    return preferred

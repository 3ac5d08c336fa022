"""Protein chains by their author's ids: of legacy PDB files, and of mmCIF files without labels.

A chain is its amino acids: those of the full sequence where the file gives it, with the residues
seen placed on it, else those seen. Waters, ligands and nucleotides are left out and listed. One
author's chain is one chain, however its records are split.
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
from evofeed.featurize.structures.seqres import Residue, fits, place_on_sequence

Rows = Int[np.ndarray, " A"]
"""Of a table of atoms: some records by number; or a number for each of these."""
Mask = Bool[np.ndarray, " A"]

_BACKBONE: Final = ("N", "CA", "C")
_BONDED: Final = (0.8, 2.0)
"""Ångström between C and the N of the next residue; a peptide bond has 1.33."""
_SEEN_ONLY: Final = "no full sequence in the file"
_NAMES: Final = 6
"""Residue names, or gaps, that a note lists."""


class FullSequence(NamedTuple):
    """What a file says a chain is, seen or not.

    Attributes:
        unseen: those that the file lists as missing.
        source: table or record that says so, for notes.
    """

    names: Sequence[str]
    unseen: Sequence[Residue] = ()
    source: str = "SEQRES"


def author_chains(
    table: AtomTable,
    sequences: Mapping[str, FullSequence],
    caps: InputCaps,
    modified: frozenset[str] = frozenset(),
) -> tuple[dict[str, PlacedRows], dict[str, str]]:
    """The protein chains of an atom table by the author's ids, in the order of the file; of the
    others id and residues by name, in words.
    `modified` are residue names that the file says are amino acids.

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
        if why := caps.excess("max_columns", size, f"chain {name} has {size} residues"):
            raise MmcifError(why)
        if placed.sequence:
            proteins[name] = placed
        else:
            others[name] = left_out or "no atom"
    return proteins, others


class Residues(NamedTuple):
    """Residues of some records of a table, in the order of their first records."""

    table: AtomTable
    rows: Rows
    number: Rows
    """Which residue each record is of."""
    first: Int[np.ndarray, " R"]
    """First record of each."""

    def names(self) -> list[str]:
        """Of each by its first record."""
        component = self.table.component
        return [component.names[code] for code in component.codes[self.first].tolist()]

    def having(self, records: Mask) -> Bool[np.ndarray, " R"]:
        """Which residues have one of these records."""
        found: np.ndarray = np.bincount(self.number, records, minlength=len(self.first)) > 0
        return found

    def bonded(self) -> Bool[np.ndarray, " B"]:
        """Whether each residue but the last has a peptide bond to the next."""
        ends = {}
        for name in ("C", "N"):
            here = self.table.atom.codes[self.rows] == self.table.atom.code(name)
            ends[name] = np.full([len(self.first), 3], np.nan)
            ends[name][self.number[here]] = self.table.xyz[self.rows[here]]
        steps = np.linalg.norm(ends["N"][1:] - ends["C"][:-1], axis=-1)
        low, high = _BONDED
        return np.asarray((steps > low) & (steps < high))  # NaN is neither


def residues_of(rows: Rows, table: AtomTable, *more: Int[np.ndarray, " T"]) -> Residues:
    """Residues of records by number, insertion code and `more`."""
    columns = (table.author_number, table.insertion.codes, *more)
    keys = np.stack([column[rows] for column in columns], -1)
    _, first, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return Residues(table, rows, np.argsort(order)[number.reshape(-1)], rows[first[order]])


def _chain(
    name: str,
    rows: Rows,
    table: AtomTable,
    full: FullSequence | None,
    modified: frozenset[str],
) -> tuple[PlacedRows, str]:
    """A chain, without sequence if it is no protein, and its other residues in words."""
    ters = table.ters[np.isin(table.ters - 1, rows)]
    member = _members(rows, table, ters, modified, full.names if full else ())
    left_out = listed(rows[~member], table)
    rows = rows[member]
    notes = [f"{left_out}: no residues of the chain"] if left_out else []
    seen, absent = residues_of(rows, table), table.absent[rows]
    index, numbers, names = None, None, []
    if full is not None and len(rows):
        names = list(full.names)
        index = _on_sequence(seen, full, notes)
    if index is None:
        known = seen.having(table.atom37[rows] >= 0)
        index = np.where(known, np.cumsum(known) - 1, -1)
        shown = residues_of(rows[known[seen.number]], table)
        names = shown.names()
        numbers = _steps(shown, notes)
        breaks = int((ters <= shown.first[-1]).sum()) if names else 0
        if breaks:
            notes.append(f"{breaks} TER records inside one chain id: it may be several chains")
    where = index[seen.number]
    prefer = _several_names(rows, where, table, names)
    present = (where >= 0) & ~absent
    rows, where = rows[present], where[present]
    columns = (where, *(c[rows] for c in (table.component.codes, table.atom.codes, table.altloc)))
    twice = len(rows) - len(np.unique(np.stack(columns, -1), axis=0))
    if twice:
        notes.append(f"{twice} atoms there twice")
    sequence = "".join(map(model_letter, names)) if len(rows) else ""
    placed = PlacedRows(
        chain_id=name,
        sequence=sequence,
        rows=rows,
        index=where,
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
    """Which records are of the chain's residues.

    Amino acids, what the full sequence names, and unknown residues with a backbone between
    them; never water. Ligands that are amino acids stand behind the chain as HETATM: after its
    TER record, or without one not bonded to it.
    """
    component, hetero = (
        Coded(table.component.codes[rows], table.component.names),
        table.hetero[rows],
    )
    amino = component.where(lambda name: is_amino_acid(name) or name in modified)
    water = component.where(is_water)
    member = amino | component.where(set(names).__contains__)
    strange = ~(member | water | component.where(is_nucleotide))
    if strange.any():
        own = residues_of(rows[strange], table)
        atoms = [table.atom.codes[own.rows] == table.atom.code(name) for name in _BACKBONE]
        whole = np.all([own.having(records) for records in atoms], axis=0)
        last = rows[amino].max(initial=-1)
        member[strange] = whole[own.number] & (own.rows < last)
    member &= ~water
    if len(ters):
        return np.asarray(member & ~(hetero & (rows >= ters[-1])))
    last = rows[member & ~hetero].max(initial=-1)
    # A modified residue with a letter is one of a chain; others of one record may be free.
    free = component.where(lambda name: standard_letter(name) != "X" or model_letter(name) == "X")
    behind = member & free & (rows > last)
    if last >= 0 and behind.any():
        own = residues_of(rows[member], table)
        loose = np.isin(own.first, rows[behind]) & ~np.append(False, own.bonded())
        member[member] = ~loose[own.number]
    return np.asarray(member)


def listed(rows: Rows, table: AtomTable) -> str:
    """Residues by name and how often, the most frequent first."""
    counts = residue_counts(rows, table).most_common()
    texts = [f"{count} {name}" for name, count in counts[:_NAMES]]
    rest = sum(count for _, count in counts[_NAMES:])
    return ", ".join([*texts, f"{rest} others"] if rest else texts)


def residue_counts(rows: Rows, table: AtomTable) -> Counter[str]:
    """How many residues of each name some records are of."""
    return Counter(residues_of(rows, table, table.component.codes).names())


def _on_sequence(
    residues: Residues, full: FullSequence, notes: list[str]
) -> Int[np.ndarray, " R"] | None:
    """Position of each residue seen on the full sequence; None if they do not belong together."""
    seen, table, first = residues.names(), residues.table, residues.first
    codes = [table.insertion.names[code] or " " for code in table.insertion.codes[first]]
    written = list(zip(table.author_number[first].tolist(), codes, seen, strict=True))
    index = place_on_sequence(written, full.names, full.unseen)
    if index is None:
        notes.append(
            f"{full.source} has {len(full.names)} residues, too many to align {len(seen)} seen"
        )
        return None
    if not fits(index, seen, full.names):
        notes.append(
            f"{full.source} has other residues than the {len(seen)} seen: the sequence is what "
            "is seen"
        )
        return None
    placed = np.flatnonzero(index >= 0)
    if other := sum(seen[i] != full.names[index[i]] for i in placed):
        notes.append(f"{other} residues are others than {full.source} says")
    if len(placed) < len(seen):
        notes.append(f"{len(seen) - len(placed)} residues are not in {full.source}")
    return index


def _steps(residues: Residues, notes: list[str]) -> Int[np.ndarray, " R"] | None:
    """Residue numbers from 0 that step over gaps, with one note on them; None without a gap.

    A gap is a step of the author's numbers between residues that no peptide bond joins: some
    numberings skip numbers where nothing is missing.
    """
    if not len(residues.first):
        return None
    written = residues.table.author_number[residues.first]
    steps = np.where(residues.bonded(), 1, np.maximum(np.diff(written), 1))
    gaps = np.flatnonzero(steps > 1).tolist()
    if not gaps:
        notes.append(f"{_SEEN_ONLY}: the sequence is what is seen")
        return None
    texts = [f"{steps[gap] - 1} after {written[gap]}" for gap in gaps[:_NAMES]]
    more = ", …" if len(gaps) > _NAMES else ""
    notes.append(
        f"{_SEEN_ONLY}, and {len(gaps)} gaps in the numbers ({', '.join(texts)}"
        f"{more}): the residues there are unknown, residue_index steps over them"
    )
    numbers = np.concatenate([[0], np.cumsum(steps)])
    if numbers[-1] > np.iinfo(np.int32).max:
        raise MmcifError(f"residue numbers span {numbers[-1]}: no numbers of one chain")
    return numbers.astype(np.int32)


def _several_names(
    rows: Rows,
    where: Rows,
    table: AtomTable,
    names: Sequence[str],
) -> dict[int, str]:
    """Of positions with atoms of several residue names: the sequence's, else the first one's."""
    code, size = table.component.codes[rows], len(table.component.names)
    inside = where >= 0
    pairs = np.unique(where[inside] * size + code[inside])
    positions, counts = np.unique(pairs // size, return_counts=True)
    prefer = {}
    for position in positions[counts > 1].tolist():
        here = [table.component.names[c] for c in code[where == position]]
        prefer[position] = names[position] if names[position] in here else here[0]
    return prefer

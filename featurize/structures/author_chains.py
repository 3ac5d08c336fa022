"""Protein chains by their author's ids: of legacy PDB files, and of mmCIF files without labels.

A chain is its amino acids: those of the full sequence where the file gives it, with the residues
seen placed on it, else those seen. Waters, ligands and nucleotides are left out and listed. One
author's chain is one chain, however its records are split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.base.shapes import Bool, Int
from evofeed.featurize.config import InputCaps
from evofeed.featurize.structures.atom_sites import PlacedRows
from evofeed.featurize.structures.atom_table import AtomTable
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
    kinds = _Kinds.of(table, modified)
    proteins, others = {}, {}
    for code, name in enumerate(table.chain.names):
        rows = np.flatnonzero(table.chain.codes == code)
        if not len(rows):
            continue
        placed, left_out = _chain(name, rows, table, sequences.get(name), kinds)
        size = len(placed.sequence)
        if why := caps.excess("max_columns", size, f"chain {name} has {size} residues"):
            raise MmcifError(why)
        if placed.sequence:
            proteins[name] = placed
        else:
            others[name] = left_out or "no atom"
    return proteins, others


@dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """What each record's residue is by name.

    `free`: one of the twenty, or without a letter, which may be a ligand; a modified residue
    with a letter is one of a chain.
    """

    amino: Mask
    free: Mask
    strange: Mask
    water: Mask

    @classmethod
    def of(cls, table: AtomTable, modified: frozenset[str]) -> _Kinds:
        amino = table.component.where(lambda name: is_amino_acid(name) or name in modified)
        water = table.component.where(is_water)
        strange = ~(amino | water | table.component.where(is_nucleotide))
        free = table.component.where(
            lambda name: standard_letter(name) != "X" or model_letter(name) == "X"
        )
        return cls(amino, free, strange, water)


def _chain(
    name: str,
    rows: Rows,
    table: AtomTable,
    full: FullSequence | None,
    kinds: _Kinds,
) -> tuple[PlacedRows, str]:
    """A chain, without sequence if it is no protein, and its other residues in words."""
    member = _members(rows, table, kinds, full)
    left_out = listed(rows[~member], table)
    ters = table.ters[np.isin(table.ters - 1, rows)]
    rows = rows[member]
    notes = [f"{left_out}: no residues of the chain"] if left_out else []
    residue, first = residues_of(rows, table)
    absent = table.absent[rows]
    index, numbers, names = None, None, []
    if full is not None and len(rows):
        names = list(full.names)
        index = _on_sequence(first, table, full, notes)
    if index is None:
        known = np.bincount(residue, table.atom37[rows] >= 0) > 0
        index = np.where(known, np.cumsum(known) - 1, -1)
        first = first[known]
        names = [table.component.names[code] for code in table.component.codes[first]]
        numbers = _steps(first, rows, table, notes)
        breaks = int((ters <= first[-1]).sum()) if len(first) else 0
        if breaks:
            notes.append(f"{breaks} TER records inside one chain id: it may be several chains")
    where = index[residue]
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


def _members(rows: Rows, table: AtomTable, kinds: _Kinds, full: FullSequence | None) -> Mask:
    """Which records are of the chain's residues.

    Amino acids, what the full sequence names, and unknown residues with a backbone between
    them; never water. Ligands that are amino acids stand behind the chain as HETATM: after its
    TER record, or without one not bonded to it.
    """
    named = set(full.names) if full is not None else set()
    member = kinds.amino[rows] | table.component.where(named.__contains__)[rows]
    strange = kinds.strange[rows] & ~member
    if strange.any():
        last = rows[kinds.amino[rows]].max(initial=-1)
        member |= strange & (rows < last) & _has_backbone(rows, table, strange)
    member &= ~kinds.water[rows]
    ters = table.ters[np.isin(table.ters - 1, rows)]
    if len(ters):
        return np.asarray(member & ~(table.hetero[rows] & (rows >= ters[-1])))
    return np.asarray(member & ~_loose_ligands(rows, table, kinds, member))


def _loose_ligands(rows: Rows, table: AtomTable, kinds: _Kinds, member: Mask) -> Mask:
    """HETATM records of free amino acids behind the chain's last ATOM, not bonded to it."""
    loose = np.zeros(len(rows), bool)
    last = rows[member & ~table.hetero[rows]].max(initial=-1)
    behind = member & kinds.free[rows] & (rows > last)
    if last < 0 or not behind.any():
        return loose
    residue, first = residues_of(rows[member], table)
    bonded = _bonded(residue, rows[member], table)
    for number in np.flatnonzero(np.isin(first, rows[behind])).tolist():
        if number == 0 or not bonded[number - 1]:
            loose[np.flatnonzero(member)[residue == number]] = True
    return loose


def _bonded(residue: Rows, rows: Rows, table: AtomTable) -> Bool[np.ndarray, " B"]:
    """Whether each residue but the last has a peptide bond to the next."""
    ends = {}
    for name in ("C", "N"):
        here = table.atom.codes[rows] == table.atom.code(name)
        ends[name] = np.full([int(residue.max(initial=-1)) + 1, 3], np.nan)
        ends[name][residue[here]] = table.xyz[rows[here]]
    steps = np.linalg.norm(ends["N"][1:] - ends["C"][:-1], axis=-1)
    low, high = _BONDED
    return np.asarray((steps > low) & (steps < high))  # NaN is neither


def _has_backbone(rows: Rows, table: AtomTable, strange: Mask) -> Mask:
    """Records of strange residues that have N, CA and C."""
    residue, first = residues_of(rows[strange], table)
    atoms = table.atom.codes[rows[strange]]
    whole = np.ones(len(first), bool)
    for name in _BACKBONE:
        whole &= np.bincount(residue, atoms == table.atom.code(name), minlength=len(first)) > 0
    out = np.zeros(len(rows), bool)
    out[strange] = whole[residue]
    return out


def residues_of(
    rows: Rows, table: AtomTable, *more: Int[np.ndarray, " T"]
) -> tuple[Rows, Int[np.ndarray, " R"]]:
    """Residue of each record by number, insertion code and `more`, and the first record of each."""
    columns = (table.author_number, table.insertion.codes, *more)
    keys = np.stack([column[rows] for column in columns], -1)
    _, first, residue = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[residue.reshape(-1)], rows[first[order]]


def listed(rows: Rows, table: AtomTable) -> str:
    """Residues by name and how often, the most frequent first."""
    counts = residue_counts(rows, table).most_common()
    texts = [f"{count} {name}" for name, count in counts[:_NAMES]]
    rest = sum(count for _, count in counts[_NAMES:])
    return ", ".join([*texts, f"{rest} others"] if rest else texts)


def residue_counts(rows: Rows, table: AtomTable) -> Counter[str]:
    """How many residues of each name some records are of."""
    _, first = residues_of(rows, table, table.component.codes)
    return Counter(table.component.names[code] for code in table.component.codes[first].tolist())


def _on_sequence(
    first: Int[np.ndarray, " R"], table: AtomTable, full: FullSequence, notes: list[str]
) -> Int[np.ndarray, " R"] | None:
    """Position of each residue seen on the full sequence; None if they do not belong together."""
    seen = [table.component.names[code] for code in table.component.codes[first]]
    codes = [table.insertion.names[code] or " " for code in table.insertion.codes[first]]
    residues = list(zip(table.author_number[first].tolist(), codes, seen, strict=True))
    index = place_on_sequence(residues, full.names, full.unseen)
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


def _steps(
    first: Int[np.ndarray, " R"], rows: Rows, table: AtomTable, notes: list[str]
) -> Int[np.ndarray, " R"] | None:
    """Residue numbers from 0 that step over gaps, with one note on them; None without a gap.

    A gap is a step of the author's numbers between residues that no peptide bond joins: some
    numberings skip numbers where nothing is missing.
    """
    if not len(first):
        return None
    written = table.author_number[first]
    steps = np.maximum(np.diff(written), 1)
    residue, firsts = residues_of(rows, table)
    rows = rows[np.isin(firsts, first)[residue]]
    residue, _ = residues_of(rows, table)
    steps = np.where(_bonded(residue, rows, table), 1, steps)
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
    code = table.component.codes[rows]
    lowest = np.full(len(names), np.iinfo(np.int32).max)
    highest = np.full(len(names), -1)
    inside = where >= 0
    np.minimum.at(lowest, where[inside], code[inside])
    np.maximum.at(highest, where[inside], code[inside])
    prefer = {}
    for position in np.flatnonzero(highest > lowest).tolist():
        here = [table.component.names[c] for c in code[where == position]]
        prefer[position] = names[position] if names[position] in here else here[0]
    return prefer

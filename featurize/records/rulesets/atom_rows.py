"""Atoms of an assembly as columns that a ruleset edits step by step, with their bonds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.protein.components import Component
from evofeed.protein.entry_record import ALTLOC_NONE, EntryRecord, offsets, run_starts
from evofeed.protein.ruleset_section import EntryRefused, placed


@dataclass(slots=True, kw_only=True)
class AtomRows:
    """Atoms in order; `chain` and `res_id` are what neighbours are told apart by. A atoms."""

    row: Integer[np.ndarray, " A"]
    """Atom of the record; -1 for one that nobody saw."""
    asym: Integer[np.ndarray, " A"]
    copy: Integer[np.ndarray, " A"]
    operator: Integer[np.ndarray, " A"]
    chain: Integer[np.ndarray, " A"]
    entity: Integer[np.ndarray, " A"]
    kind: Integer[np.ndarray, " A"]
    """Molecule type, as the project numbers them."""
    res_id: Integer[np.ndarray, " A"]
    insertion: Shaped[np.ndarray, " A"]
    res_name: Shaped[np.ndarray, " A"]
    hetero: Bool[np.ndarray, " A"]
    name: Shaped[np.ndarray, " A"]
    element: Shaped[np.ndarray, " A"]
    charge: Integer[np.ndarray, " A"]
    occupancy: Float[np.ndarray, " A"]
    position: Float[np.ndarray, "A 3"]
    """Ångström, float32; NaN for an atom that nobody saw."""
    bonds: Integer[np.ndarray, "B 3"]
    """Two atoms and the type of their bond."""

    @classmethod
    def of_record(
        cls,
        record: EntryRecord,
        rows: Integer[np.ndarray, " A"],
        entity: Integer[np.ndarray, " C"],
        number: Integer[np.ndarray, " R"],
    ) -> AtomRows:
        """Atoms of the asymmetric unit, without bonds; entities of chains and numbers of residues
        are as the project counts.
        """
        residue = record.atom_residue()[rows]
        chain = record.residue_chain()[residue]
        size = len(rows)
        return cls(
            row=rows,
            asym=chain,
            copy=np.zeros(size, np.int64),
            operator=np.full(size, -1),
            chain=chain.copy(),
            entity=entity[chain].astype(np.int64),
            kind=np.zeros(size, np.int64),
            res_id=number[residue].astype(np.int64),
            insertion=record.residue_insertion[residue],
            res_name=record.residue_name[residue].astype("U8"),
            hetero=record.residue_hetero[residue],
            name=record.atom_name[rows].astype("U8"),
            element=record.atom_element[rows].astype("U4"),
            charge=record.atom_charge[rows].astype(np.int64),
            occupancy=record.atom_occupancy[rows],
            position=record.atom_position[rows].astype(np.float32),
            bonds=np.zeros((0, 3), np.int64),
        )

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: np.ndarray) -> AtomRows:
        """These atoms, in this order (a mask or distinct row numbers), and the bonds among them."""
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return AtomRows(**columns, bonds=self._bonds_among(rows, np.arange(len(rows))))

    def _bonds_among(
        self, rows: Integer[np.ndarray, " n"], places: Integer[np.ndarray, " n"]
    ) -> Integer[np.ndarray, "b 3"]:
        """The bonds among these atoms, which are at other places now."""
        moved = np.full(len(self), -1, np.int64)
        moved[rows] = places
        bonds = self.bonds.copy()
        bonds[:, :2] = moved[bonds[:, :2]]
        among: np.ndarray = bonds[(bonds[:, :2] >= 0).all(axis=1)]
        return among

    def chain_starts(self) -> Integer[np.ndarray, " c"]:
        """Where a chain begins: another chain or copy, or a residue number that falls."""
        return run_starts(self.chain, self.copy, falling=self.res_id)

    def columns(
        self, starts: Integer[np.ndarray, " c"], residues: Integer[np.ndarray, " r"]
    ) -> dict[str, np.ndarray]:
        """What a `RulesetSection` takes over as it is, of chains and residues that begin there."""
        return {
            "chain_asym": self.asym[starts],
            "chain_operator": self.operator[starts],
            "chain_copy": self.copy[starts],
            "chain_valid": np.ones(len(starts), bool),
            "chain_residue": offsets(
                np.bincount(spread(starts, len(self))[residues], minlength=len(starts))
            ),
            "residue_name": self.res_name[residues],
            "residue_index": self.res_id[residues],
            "residue_insertion": self.insertion[residues],
            "residue_hetero": self.hetero[residues],
            "residue_atom": np.append(residues, len(self)),
            "atom_name": self.name,
            "atom_element": self.element,
            "atom_charge": self.charge,
            "atom_row": self.row,
            "bond_atom": self.bonds[:, :2],
            "bond_type": self.bonds[:, 2],
        }

    def residue_starts(self) -> Integer[np.ndarray, " r"]:
        """Where a residue begins: another chain, copy, number or insertion code."""
        return run_starts(self.chain, self.copy, self.res_id, self.insertion)

    def residue_counts(self, starts: Integer[np.ndarray, " c"]) -> Integer[np.ndarray, " c"]:
        """Residues of every chain that begins there."""
        number = spread(starts, len(self))[self.residue_starts()]
        return np.bincount(number, minlength=len(starts))

    def kind_counts(self, starts: Integer[np.ndarray, " c"]) -> Integer[np.ndarray, "c 4"]:
        """Atoms of each kind of every chain that begins there."""
        counts = np.zeros((len(starts), 4), np.int64)
        np.add.at(counts, (spread(starts, len(self)), self.kind), 1)
        return counts

    def residue_number(self) -> Integer[np.ndarray, " A"]:
        """Running number of every atom's residue."""
        return spread(self.residue_starts(), len(self))


_COLUMNS: Final = [field.name for field in dataclasses.fields(AtomRows) if field.name != "bonds"]
_OF_RESIDUE: Final = "asym copy operator chain entity kind res_id insertion hetero".split()


class Part(NamedTuple):
    """A residue that is laid out: its atoms in their order, n of them."""

    like: int
    """Atom of its chain; of itself where it was seen."""
    component: Component | None
    """None for a residue that stays as it is."""
    rows: Integer[np.ndarray, " n"]
    """Atoms of the component; not read of one that stays as it is."""
    seen: Integer[np.ndarray, " n"]
    """Atom that each of them is; -1 for one that nobody saw."""
    number: int = 0
    """Of a residue that nobody saw, from 1."""
    hetero: bool = False
    """Likewise."""


def laid_out(atoms: AtomRows, parts: Sequence[Part], *, as_seen: bool = False) -> AtomRows:
    """These residues one after the other, with the bonds among the atoms that were seen.

    Atoms that were seen keep their places; names, elements and charges are the component's, but
    for `as_seen`.
    """
    counts = [len(part.seen) for part in parts]
    like = np.repeat([part.like for part in parts], counts)
    seen = np.concatenate([part.seen for part in parts])
    number = np.repeat([part.number for part in parts], counts)

    def of_parts(column: str) -> np.ndarray:
        return np.concatenate(
            [
                getattr(part.component, column)[part.rows]
                if part.component
                else getattr(atoms, column)[part.seen]
                for part in parts
            ]
        )

    codes = [part.component.code if part.component else atoms.res_name[part.like] for part in parts]
    made = AtomRows(
        **{column: getattr(atoms, column)[like] for column in _OF_RESIDUE},
        row=np.full(len(like), -1),
        res_name=np.repeat(np.array(codes, "U8"), counts),
        name=of_parts("name").astype("U8"),
        element=of_parts("element").astype("U4"),
        charge=of_parts("charge").astype(np.int64),
        occupancy=np.zeros(len(like)),
        position=np.full((len(like), 3), np.nan, np.float32),
        bonds=np.zeros((0, 3), np.int64),
    )
    new = number > 0
    made.res_id[new], made.insertion[new] = number[new], ""
    made.hetero[new] = np.repeat([part.hetero for part in parts], counts)[new]
    there = np.flatnonzero(seen >= 0)
    for column in _COLUMNS if as_seen else ("row", "occupancy", "position"):
        getattr(made, column)[there] = getattr(atoms, column)[seen[there]]
    made.bonds = atoms._bonds_among(seen[there], there)
    return made


def residues_and_gaps(
    atoms: AtomRows, length: Callable[[int], int]
) -> Iterator[tuple[int, int, int]]:
    """First atom of every residue, the one behind its last, and its number, chain by chain.

    Between them stand residues of the sequence that nobody saw, without an atom: twice the first
    one of the chain. `length` says how long the sequence of an atom's chain is, 0 for none.
    """
    residues = atoms.residue_starts()
    for low, high in runs(atoms.chain_starts(), len(atoms)):
        most, before = length(low), 0
        inside = residues[slice(*np.searchsorted(residues, [low, high]))]
        for first, stop in runs(inside, high):
            number = int(atoms.res_id[first])
            if most:
                yield from ((low, low, gap) for gap in range(before + 1, min(number, most + 1)))
            yield first, stop, number
            before = number
        if most:
            yield from ((low, low, gap) for gap in range(before + 1, most + 1))


def by_author(atoms: AtomRows, record: EntryRecord) -> AtomRows:
    """Atoms that were seen, by the author's chains and numbers of residues."""
    _, author = np.unique(np.array(record.chain_author), return_inverse=True)
    number = record.residue_author[record.atom_residue()[atoms.row]].astype(np.int64)
    return dataclasses.replace(atoms, chain=author[atoms.asym], res_id=number)


def to_methionine(atoms: AtomRows) -> None:
    """Make selenomethionines methionines, in place."""
    held = atoms.res_name == "MSE"
    selenium = held & (atoms.name == "SE")
    atoms.name[selenium], atoms.element[selenium] = "SD", "S"
    atoms.res_name[held] = "MET"
    atoms.hetero[held] = False


def exchanged_arginines(atoms: AtomRows) -> tuple[np.ndarray, np.ndarray]:
    """NH1 and NH2 of the arginines whose NH2 is the one nearer to CD."""
    number = atoms.residue_number()
    rows = [
        first_of((atoms.res_name == "ARG") & (atoms.name == name), number, len(atoms))
        for name in ("NH1", "NH2", "CD")
    ]
    one, two, base = np.stack(rows)[:, (np.stack(rows) >= 0).all(axis=0)]
    near = np.linalg.norm(atoms.position[two] - atoms.position[base], axis=1)
    swapped = near < np.linalg.norm(atoms.position[one] - atoms.position[base], axis=1)
    return one[swapped], two[swapped]


def exchange_arginines(atoms: AtomRows) -> None:
    """Let NH1 and NH2 of these arginines change places, in place."""
    one, two = exchanged_arginines(atoms)
    swapped, back = np.append(one, two), np.append(two, one)
    atoms.row[swapped], atoms.position[swapped] = atoms.row[back], atoms.position[back]


def runs(starts: Integer[np.ndarray, " s"], size: int) -> Iterator[tuple[int, int]]:
    """First row of every segment, and the one behind its last, from where segments begin."""
    return zip(starts.tolist(), [*starts[1:].tolist(), size], strict=True)


def spread(starts: Integer[np.ndarray, " s"], size: int) -> Integer[np.ndarray, " size"]:
    """Running number of the segment of every row, from where segments begin."""
    return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, size)))


def first_of(
    mask: Bool[np.ndarray, " A"], number: Integer[np.ndarray, " A"], count: int
) -> Integer[np.ndarray, " count"]:
    """First row of the mask of every number; -1 for none."""
    found = np.full(count, -1, np.int64)
    rows = np.flatnonzero(mask)[::-1]
    found[number[rows]] = rows
    return found


def joined_rows(pieces: list[AtomRows]) -> AtomRows:
    """Atoms of all pieces one after the other, bonds of each."""
    sizes = offsets(np.array([len(piece) for piece in pieces]))
    shifts = [(size, size, 0) for size in sizes[:-1].tolist()]
    bonds = [piece.bonds + shift for piece, shift in zip(pieces, shifts, strict=True)]
    columns = {name: np.concatenate([getattr(one, name) for one in pieces]) for name in _COLUMNS}
    return AtomRows(**columns, bonds=np.concatenate(bonds))


def copied(unit: AtomRows, record: EntryRecord) -> Iterator[tuple[np.ndarray, AtomRows]]:
    """Chains and moved atoms of every copy in assembly 1, in the order of the file's table.

    Raises:
        EntryRefused: the file has no such assembly.
    """
    if record.assembly != "1":
        raise EntryRefused("no assembly named 1", item=record.entry)
    labels = np.array(record.chain_label)
    for one in record.copies:
        chains = np.flatnonzero(np.isin(labels, one.asyms))
        base = unit.take(np.isin(unit.asym, chains))
        for operator in one.operators:
            moved = dataclasses.replace(base, operator=np.full(len(base), operator))
            place(moved, record, single=True)
            yield chains, moved


def place(atoms: AtomRows, record: EntryRecord, *, single: bool) -> None:
    """Move atoms by their operators, in place; see `placed`."""
    position = record.atom_position[atoms.row]
    atoms.position = placed(position, atoms.operator, record.operators, single=single)
    atoms.position[atoms.row < 0] = np.nan


def one_location(
    record: EntryRecord, chosen: Callable[[dict[int, float]], int | None]
) -> Bool[np.ndarray, " A"]:
    """Atoms without alternate locations, and of every residue those of the one that is chosen
    among the sums of occupancy by letter. Monomers of one number are one residue.
    """
    mask: np.ndarray = record.atom_altloc == ALTLOC_NONE
    starts = run_starts(record.residue_chain(), record.residue_author, record.residue_insertion)
    bounds = record.residue_atom[np.append(starts, record.num_residues)]
    residue = spread(bounds[:-1], record.num_atoms)
    for row in np.unique(residue[~mask]).tolist():
        inside = slice(*bounds[row : row + 2])
        letters, occupancy = record.atom_altloc[inside], record.atom_occupancy[inside]
        sums = {
            letter: float(np.sum(occupancy[letters == letter]))
            for letter in sorted(set(letters.tolist()) - {ALTLOC_NONE})
        }
        if (best := chosen(sums)) is not None:
            mask[inside] |= letters == best
    return mask

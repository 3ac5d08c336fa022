"""Columns of an assembly's atoms, which a ruleset edits step by step, and their bonds."""

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
    """A atoms in order; `chain` and `res_id` tell neighbouring residues apart."""

    row: Integer[np.ndarray, " A"]
    """Atom of the record; -1 if unresolved."""
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
    """Ångström, float32; NaN for an unresolved atom."""
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
        """Atoms of the asymmetric unit, without bonds; `entity` by chain and `number` by residue
        are as the project counts."""
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
        self, rows: Integer[np.ndarray, " n"], positions: Integer[np.ndarray, " n"]
    ) -> Integer[np.ndarray, "b 3"]:
        """The bonds among these atoms, renumbered from `rows` to `positions`."""
        new_row = np.full(len(self), -1, np.int64)
        new_row[rows] = positions
        bonds = self.bonds.copy()
        bonds[:, :2] = new_row[bonds[:, :2]]
        among: np.ndarray = bonds[(bonds[:, :2] >= 0).all(axis=1)]
        return among

    def chain_starts(self) -> Integer[np.ndarray, " c"]:
        """First atom of every chain: another chain or copy, or a residue number that falls."""
        return run_starts(self.chain, self.copy, falling=self.res_id)

    def columns(
        self, starts: Integer[np.ndarray, " c"], residues: Integer[np.ndarray, " r"]
    ) -> dict[str, np.ndarray]:
        """Columns of a `RulesetSection`, for chains from `starts` and residues from `residues`."""
        return {
            "chain_asym": self.asym[starts],
            "chain_operator": self.operator[starts],
            "chain_copy": self.copy[starts],
            "chain_valid": np.ones(len(starts), bool),
            "chain_residue": offsets(
                np.bincount(segment_ids(starts, len(self))[residues], minlength=len(starts))
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
        """First atom of every residue: another chain, copy, number or insertion code."""
        return run_starts(self.chain, self.copy, self.res_id, self.insertion)

    def residue_counts(self, starts: Integer[np.ndarray, " c"]) -> Integer[np.ndarray, " c"]:
        """Number of residues of every chain."""
        number = segment_ids(starts, len(self))[self.residue_starts()]
        return np.bincount(number, minlength=len(starts))

    def kind_counts(self, starts: Integer[np.ndarray, " c"]) -> Integer[np.ndarray, "c 4"]:
        """Number of atoms of each molecule type, for every chain."""
        counts = np.zeros((len(starts), 4), np.int64)
        np.add.at(counts, (segment_ids(starts, len(self)), self.kind), 1)
        return counts

    def residue_number(self) -> Integer[np.ndarray, " A"]:
        """Running number of every atom's residue."""
        return segment_ids(self.residue_starts(), len(self))


_COLUMNS: Final = [field.name for field in dataclasses.fields(AtomRows) if field.name != "bonds"]
_RESIDUE_COLUMNS: Final = "asym copy operator chain entity kind res_id insertion hetero".split()


class ResiduePlan(NamedTuple):
    """The n atoms a residue is to have, in their order."""

    chain_row: int
    """Atom whose chain-level columns it takes: its own first atom if it is resolved."""
    component: Component | None
    """None for a residue that is copied unchanged."""
    rows: Integer[np.ndarray, " n"]
    """Atoms of the component; not read if there is none."""
    source: Integer[np.ndarray, " n"]
    """Resolved atom for each of them; -1 if unresolved."""
    res_id: int = 0
    """Number of an unresolved residue, from 1; 0 if it is resolved."""
    hetero: bool = False
    """Of an unresolved residue."""


def build_residues(
    atoms: AtomRows, plans: Sequence[ResiduePlan], *, keep_columns: bool = False
) -> AtomRows:
    """These residues one after the other, with the bonds among resolved atoms.

    Resolved atoms keep their coordinates; names, elements and charges are the component's, unless
    `keep_columns` takes all columns from the resolved atom.
    """
    counts = [len(plan.source) for plan in plans]
    chain_row = np.repeat([plan.chain_row for plan in plans], counts)
    source = np.concatenate([plan.source for plan in plans])
    res_id = np.repeat([plan.res_id for plan in plans], counts)

    def of_parts(column: str) -> np.ndarray:
        return np.concatenate(
            [
                getattr(plan.component, column)[plan.rows]
                if plan.component
                else getattr(atoms, column)[plan.source]
                for plan in plans
            ]
        )

    codes = [p.component.code if p.component else atoms.res_name[p.chain_row] for p in plans]
    built = AtomRows(
        **{column: getattr(atoms, column)[chain_row] for column in _RESIDUE_COLUMNS},
        row=np.full(len(chain_row), -1),
        res_name=np.repeat(np.array(codes, "U8"), counts),
        name=of_parts("name").astype("U8"),
        element=of_parts("element").astype("U4"),
        charge=of_parts("charge").astype(np.int64),
        occupancy=np.zeros(len(chain_row)),
        position=np.full((len(chain_row), 3), np.nan, np.float32),
        bonds=np.zeros((0, 3), np.int64),
    )
    added = res_id > 0
    built.res_id[added], built.insertion[added] = res_id[added], ""
    built.hetero[added] = np.repeat([plan.hetero for plan in plans], counts)[added]
    resolved = np.flatnonzero(source >= 0)
    for column in _COLUMNS if keep_columns else ("row", "occupancy", "position"):
        getattr(built, column)[resolved] = getattr(atoms, column)[source[resolved]]
    built.bonds = atoms._bonds_among(source[resolved], resolved)
    return built


def residues_and_gaps(
    atoms: AtomRows, length: Callable[[int], int]
) -> Iterator[tuple[int, int, int]]:
    """First atom, end and number of every residue, chain by chain.

    Unresolved residues of the sequence are listed in their place, with the chain's first atom as
    both first atom and end. `length` gives the sequence length of an atom's chain, 0 for none.
    """
    residues = atoms.residue_starts()
    for low, high in segment_bounds(atoms.chain_starts(), len(atoms)):
        total, last = length(low), 0
        inside = residues[slice(*np.searchsorted(residues, [low, high]))]
        for first, stop in segment_bounds(inside, high):
            number = int(atoms.res_id[first])
            if total:
                yield from ((low, low, gap) for gap in range(last + 1, min(number, total + 1)))
            yield first, stop, number
            last = number
        if total:
            yield from ((low, low, gap) for gap in range(last + 1, total + 1))


def author_numbered(atoms: AtomRows, record: EntryRecord) -> AtomRows:
    """Resolved atoms with the author's chains and residue numbers."""
    _, author = np.unique(np.array(record.chain_author), return_inverse=True)
    number = record.residue_author[record.atom_residue()[atoms.row]].astype(np.int64)
    return dataclasses.replace(atoms, chain=author[atoms.asym], res_id=number)


def to_methionine(atoms: AtomRows) -> None:
    """Replaces selenomethionine (MSE) with methionine, in place."""
    modified = atoms.res_name == "MSE"
    selenium = modified & (atoms.name == "SE")
    atoms.name[selenium], atoms.element[selenium] = "SD", "S"
    atoms.res_name[modified] = "MET"
    atoms.hetero[modified] = False


def arginines_to_swap(atoms: AtomRows) -> tuple[np.ndarray, np.ndarray]:
    """Rows of NH1 and of NH2 of the arginines whose NH2 is nearer to CD."""
    number = atoms.residue_number()
    atom_rows = [
        first_rows((atoms.res_name == "ARG") & (atoms.name == name), number, len(atoms))
        for name in ("NH1", "NH2", "CD")
    ]
    nh1, nh2, cd = np.stack(atom_rows)[:, (np.stack(atom_rows) >= 0).all(axis=0)]
    near = np.linalg.norm(atoms.position[nh2] - atoms.position[cd], axis=1)
    swapped = near < np.linalg.norm(atoms.position[nh1] - atoms.position[cd], axis=1)
    return nh1[swapped], nh2[swapped]


def swap_arginine_nitrogens(atoms: AtomRows) -> None:
    """Swaps NH1 and NH2 where NH2 is nearer to CD, in place."""
    nh1, nh2 = arginines_to_swap(atoms)
    target, source = np.append(nh1, nh2), np.append(nh2, nh1)
    atoms.row[target], atoms.position[target] = atoms.row[source], atoms.position[source]


def segment_bounds(starts: Integer[np.ndarray, " s"], size: int) -> Iterator[tuple[int, int]]:
    """First row and end of every segment, from the first rows."""
    ends = [*starts[1:].tolist(), size][: len(starts)]
    return zip(starts.tolist(), ends, strict=True)


def segment_ids(starts: Integer[np.ndarray, " s"], size: int) -> Integer[np.ndarray, " size"]:
    """Running number of the segment of every row, from the segments' first rows."""
    return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, size)))


def first_rows(
    mask: Bool[np.ndarray, " A"], number: Integer[np.ndarray, " A"], count: int
) -> Integer[np.ndarray, " count"]:
    """First row within the mask for each of `count` numbers; -1 if there is none."""
    first = np.full(count, -1, np.int64)
    rows = np.flatnonzero(mask)[::-1]
    first[number[rows]] = rows
    return first


def concatenated(pieces: list[AtomRows]) -> AtomRows:
    """Atoms of all pieces one after the other, with their bonds."""
    sizes = offsets(np.array([len(piece) for piece in pieces]))
    shifts = [(size, size, 0) for size in sizes[:-1].tolist()]
    bonds = [piece.bonds + shift for piece, shift in zip(pieces, shifts, strict=True)]
    columns = {name: np.concatenate([getattr(p, name) for p in pieces]) for name in _COLUMNS}
    return AtomRows(**columns, bonds=np.concatenate(bonds))


def assembly_copies(unit: AtomRows, record: EntryRecord) -> Iterator[tuple[np.ndarray, AtomRows]]:
    """Chains and transformed atoms of every copy in assembly 1, in the order of the file's table.

    Raises:
        EntryRefused: the file has no such assembly.
    """
    if record.assembly != "1":
        raise EntryRefused("no assembly named 1", item=record.entry)
    labels = np.array(record.chain_label)
    for copies in record.copies:
        chains = np.flatnonzero(np.isin(labels, copies.asyms))
        base = unit.take(np.isin(unit.asym, chains))
        for operator in copies.operators:
            moved = dataclasses.replace(base, operator=np.full(len(base), operator))
            apply_operators(moved, record, single=True)
            yield chains, moved


def apply_operators(atoms: AtomRows, record: EntryRecord, *, single: bool) -> None:
    """Sets coordinates to the record's, transformed by each atom's operator; see `placed`."""
    position = record.atom_position[atoms.row]
    atoms.position = placed(position, atoms.operator, record.operators, single=single)
    atoms.position[atoms.row < 0] = np.nan


def single_location(
    record: EntryRecord, choose: Callable[[dict[int, float]], int | None]
) -> Bool[np.ndarray, " A"]:
    """Mask of atoms with no alternate location, or with the one of their residue that is chosen
    from the sums of occupancy by letter. Monomers of one number are one residue."""
    mask: np.ndarray = record.atom_altloc == ALTLOC_NONE
    starts = run_starts(record.residue_chain(), record.residue_author, record.residue_insertion)
    bounds = record.residue_atom[np.append(starts, record.num_residues)]
    residue = segment_ids(bounds[:-1], record.num_atoms)
    for row in np.unique(residue[~mask]).tolist():
        inside = slice(*bounds[row : row + 2])
        letters, occupancy = record.atom_altloc[inside], record.atom_occupancy[inside]
        sums = {
            letter: float(np.sum(occupancy[letters == letter]))
            for letter in sorted(set(letters.tolist()) - {ALTLOC_NONE})
        }
        if (best := choose(sums)) is not None:
            mask[inside] |= letters == best
    return mask

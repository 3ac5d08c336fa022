"""Atoms of an assembly as columns that a ruleset edits step by step, with their bonds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import ALTLOC_NONE, Dropped, EntryRecord, offsets, run_starts
from evofeed.protein.ruleset_section import EntryRefused, placed

SINGLE, COORDINATION = 1, 8
COVALENT_LINKS = dict.fromkeys(
    "covale covale_base covale_phosphate covale_sugar disulf modres modres_link".split(), SINGLE
)
"""Type of the bond by `Link.kind`."""
_AROMATIC = {1: 5, 2: 6, 3: 7, 5: 9}
_PEPTIDE_LINKS = ("PEPTIDE LINKING", "L-PEPTIDE LINKING", "D-PEPTIDE LINKING")
_NUCLEIC_LINKS = ("RNA LINKING", "DNA LINKING")


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

    def unseen(
        self,
        like: Integer[np.ndarray, " n"],
        name: Shaped[np.ndarray, " n"],
        element: Shaped[np.ndarray, " n"],
        charge: Integer[np.ndarray, " n"],
    ) -> AtomRows:
        """Atoms that nobody saw, each of the residue of the atom that it is `like`."""
        columns = "asym copy operator chain entity kind res_id insertion res_name hetero".split()
        return AtomRows(
            **{column: getattr(self, column)[like] for column in columns},
            row=np.full(len(like), -1),
            name=name.astype("U8"),
            element=element.astype("U4"),
            charge=charge.astype(np.int64),
            occupancy=np.zeros(len(like)),
            position=np.full((len(like), 3), np.nan, np.float32),
            bonds=np.zeros((0, 3), np.int64),
        )

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: np.ndarray) -> AtomRows:
        """These atoms, in this order (a mask or distinct row numbers), and the bonds among them."""
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        moved = np.full(len(self) + 1, -1, np.int64)
        moved[rows] = np.arange(len(rows))
        bonds = self.bonds.copy()
        bonds[:, :2] = moved[bonds[:, :2]]
        changes = {
            field.name: getattr(self, field.name)[rows]
            for field in dataclasses.fields(self)
            if field.name != "bonds"
        }
        return AtomRows(**changes, bonds=bonds[(bonds[:, :2] >= 0).all(axis=1)])

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


def to_methionine(atoms: AtomRows) -> None:
    """Make selenomethionines methionines, in place."""
    held = atoms.res_name == "MSE"
    selenium = held & (atoms.name == "SE")
    atoms.name[selenium], atoms.element[selenium] = "SD", "S"
    atoms.res_name[held] = "MET"
    atoms.hetero[held] = False


def runs(starts: Integer[np.ndarray, " s"], size: int) -> Iterator[tuple[int, int]]:
    """First row of every segment, and the one behind its last, from where segments begin."""
    return zip(starts.tolist(), [*starts[1:].tolist(), size], strict=True)


def spread(starts: Integer[np.ndarray, " s"], size: int) -> Integer[np.ndarray, " size"]:
    """Running number of the segment of every row, from where segments begin."""
    return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, size)))


def merged_bonds(*tables: Integer[np.ndarray, "_ 3"]) -> Integer[np.ndarray, "B 3"]:
    """Bonds of all tables, each pair once, lower atom first; a later table decides its type."""
    table = np.concatenate([table.reshape(-1, 3) for table in tables])[::-1].astype(np.int64)
    table[:, :2] = np.sort(table[:, :2], axis=1)
    _pairs, first = np.unique(table[:, :2], axis=0, return_index=True)
    return table[first]


def residue_bonds(
    atoms: AtomRows, components: ComponentTable, starts: Integer[np.ndarray, " r"]
) -> Integer[np.ndarray, "B 3"]:
    """Bonds inside residues, as the dictionary of components has them."""
    names = atoms.res_name[starts]
    stops = np.append(starts[1:], len(atoms))
    parts = [np.zeros((0, 3), np.int64)]
    for code in np.unique(names).tolist():
        component = components.get(code)
        if component is None or not len(component.bond):
            continue
        held = np.flatnonzero(names == code)
        row = np.concatenate([np.arange(starts[r], stops[r]) for r in held])
        which = np.repeat(np.arange(len(held)), (stops - starts)[held])
        lookup = component_rows(component.name, atoms.name[row])
        table = np.full((len(held), len(component.name)), -1, np.int64)
        table[which[lookup >= 0], lookup[lookup >= 0]] = row[lookup >= 0]
        pairs = table[:, component.bond].reshape(-1, 2)
        types = np.tile(bond_types(component.bond_order, component.bond_aromatic), len(held))
        there = (pairs >= 0).all(axis=1)
        parts.append(np.column_stack([pairs[there], types[there]]))
    return np.concatenate(parts)


def chain_bonds(
    atoms: AtomRows,
    components: ComponentTable,
    starts: Integer[np.ndarray, " r"],
    *,
    chain: Shaped[np.ndarray, " A"] | None = None,
    res_id: Integer[np.ndarray, " A"] | None = None,
    exact_case: bool = False,
    kind_of: Callable[[Component], int] | None = None,
) -> Integer[np.ndarray, "B 3"]:
    """Bonds between residues that follow each other: C to N, O3' to P.

    Args:
        chain: names of chains in place of `atoms.chain`.
        res_id: numbers in place of `atoms.res_id`; a step of more than 1 is a gap.
        exact_case: link only types that are written in upper case.
        kind_of: 1 for what links as a protein, 2 for nucleic acids, 0 for what does not; None asks
            for the types that biotite links.
    """
    chain = atoms.chain if chain is None else chain
    res_id = atoms.res_id if res_id is None else res_id
    if len(starts) < 2:
        return np.zeros((0, 3), np.int64)
    kinds = {}
    for code in np.unique(atoms.res_name[starts]).tolist():
        component = components.get(code)
        if kind_of is not None:
            kinds[code] = kind_of(component) if component else 0
            continue
        text = component.type if component else ""
        text = text if exact_case else text.upper()
        kinds[code] = 1 if text in _PEPTIDE_LINKS else 2 if text in _NUCLEIC_LINKS else 0
    kind = np.array([kinds[code] for code in atoms.res_name[starts].tolist()])
    one, two = starts[:-1], starts[1:]
    linked = (
        (chain[one] == chain[two])
        & (res_id[two] - res_id[one] <= 1)
        & (kind[:-1] == kind[1:])
        & (kind[1:] > 0)
    )
    number = spread(starts, len(atoms))
    parts = []
    for code, (tail, head) in {1: ("C", "N"), 2: ("O3'", "P")}.items():
        ends = _first_of(atoms.name == tail, number, len(starts))
        heads = _first_of(atoms.name == head, number, len(starts))
        pair = np.column_stack([ends[:-1], heads[1:]])[linked & (kind[1:] == code)]
        pair = pair[(pair >= 0).all(axis=1)]
        parts.append(np.column_stack([pair, np.full(len(pair), SINGLE)]))
    return np.concatenate(parts)


def component_rows(
    names: Shaped[np.ndarray, " a"], wanted: Shaped[np.ndarray, " n"]
) -> Integer[np.ndarray, " n"]:
    """Row of every wanted name among a component's; -1 if it has none of that name."""
    rows = {name: row for row, name in enumerate(names.tolist())}
    return np.array([rows.get(name, -1) for name in wanted.tolist()], np.int64)


def bond_types(
    order: Integer[np.ndarray, " b"], aromatic: Bool[np.ndarray, " b"]
) -> Integer[np.ndarray, " b"]:
    """Biotite's numbers: 1 to 4 by order, 5 to 7 and 9 aromatic, 0 any other."""
    plain = np.where(order <= 4, order, 0)
    ring = np.array([_AROMATIC.get(value, 0) for value in order.tolist()], np.int64)
    return np.where(aromatic, ring, plain).astype(np.int64)


def _first_of(
    mask: Bool[np.ndarray, " A"], number: Integer[np.ndarray, " A"], count: int
) -> Integer[np.ndarray, " count"]:
    found = np.full(count, -1, np.int64)
    rows = np.flatnonzero(mask)[::-1]
    found[number[rows]] = rows
    return found


def connected(size: int, bonds: Integer[np.ndarray, "B w"]) -> Integer[np.ndarray, " size"]:
    """Lowest atom that every atom is joined to by bonds."""
    label = np.arange(size)
    one, two = bonds[:, 0], bonds[:, 1]
    while True:
        low = np.minimum(label[one], label[two])
        before = label.copy()
        np.minimum.at(label, label[one], low)
        np.minimum.at(label, label[two], low)
        np.minimum.at(label, one, low)
        np.minimum.at(label, two, low)
        label = label[label]
        if np.array_equal(label, before):
            return label


def joined_rows(pieces: list[AtomRows]) -> AtomRows:
    """Atoms of all pieces one after the other, bonds of each."""
    sizes = offsets(np.array([len(piece) for piece in pieces]))
    bonds = []
    for piece, shift in zip(pieces, sizes[:-1].tolist(), strict=True):
        moved = piece.bonds.copy()
        moved[:, :2] += shift
        bonds.append(moved)
    values: dict[str, np.ndarray] = {
        field.name: np.concatenate([getattr(piece, field.name) for piece in pieces])
        for field in dataclasses.fields(AtomRows)
        if field.name != "bonds"
    }
    return AtomRows(**values, bonds=np.concatenate(bonds))


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
            which = np.full(len(base), operator)
            position = placed(record.atom_position[base.row], which, record.operators, single=True)
            position[base.row < 0] = np.nan
            yield chains, dataclasses.replace(base, operator=which, position=position)


def exchanged_arginines(atoms: AtomRows) -> tuple[np.ndarray, np.ndarray]:
    """NH1 and NH2 of the arginines whose NH2 is the one nearer to CD."""
    number = atoms.residue_number()
    rows = [
        _first_of((atoms.res_name == "ARG") & (atoms.name == name), number, len(atoms))
        for name in ("NH1", "NH2", "CD")
    ]
    one, two, base = np.stack(rows)[:, (np.stack(rows) >= 0).all(axis=0)]
    near = np.linalg.norm(atoms.position[two] - atoms.position[base], axis=1)
    swapped = near < np.linalg.norm(atoms.position[one] - atoms.position[base], axis=1)
    return one[swapped], two[swapped]


def linked_bonds(
    record: EntryRecord,
    rows: Integer[np.ndarray, " A"],
    kinds: Mapping[str, int],
    dropped: list[Dropped],
) -> Integer[np.ndarray, "b 3"]:
    """Links of the file whose ends are among these atoms, within one copy; of other kinds
    than those with a type of bond none. `dropped` gets the links whose ends are not there.
    """
    moved = np.full(record.num_atoms, -1, np.int64)
    moved[rows] = np.arange(len(rows))
    bonds = []
    for link in record.links:
        kind = kinds.get(link.kind)
        if kind is None or any(end.symmetry not in ("", "1_555") for end in link.ends):
            continue
        atoms = []
        for end in link.ends:
            if end.residue < 0:
                continue
            low, high = record.residue_atom[end.residue : end.residue + 2]
            altloc = ord(end.altloc[0]) if end.altloc else ALTLOC_NONE
            held = (record.atom_name[low:high] == end.atom) & (
                record.atom_altloc[low:high] == altloc
            )
            atoms += moved[low:high][held][:1].tolist()
        if len(atoms) == 2 and min(atoms) >= 0:
            bonds.append((*atoms, kind))
        else:
            ends = "-".join(f"{end.component}.{end.atom}" for end in link.ends)
            reason, chain = "an end is not in the structure", link.ends[0].asym
            dropped.append(Dropped(what="link", chain=chain, component=ends, reason=reason))
    return np.array(bonds, np.int64).reshape(-1, 3)

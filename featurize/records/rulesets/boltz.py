"""A record as Boltz 1 prepares it (its `scripts/process/mmcif.py`, `rcsb.py`, static filters).

Chains that its filters refuse stay in the tables, without tokens.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    ResiduePlan,
    apply_operators,
    build_residues,
    concatenated,
    segment_ids,
    swap_arginine_nitrogens,
)
from evofeed.featurize.records.rulesets.boltz_alignment import aligned_residues
from evofeed.featurize.records.rulesets.boltz_rules import BoltzRules, refused_chains
from evofeed.featurize.records.rulesets.bonds import residue_bonds
from evofeed.featurize.records.rulesets.cleaning import Cleaning
from evofeed.featurize.records.rulesets.contacts import contacts, groups_in_contact
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.datapoints import RESTYPES
from evofeed.protein.entry_record import (
    HYDROGENS,
    LIGAND,
    POLYMERS,
    WATERS,
    EntryRecord,
    Link,
    LinkEnd,
    run_starts,
)
from evofeed.protein.ruleset_section import RulesetSection

_ALIGNED: Final = ("PeptideL", "Dna", "Rna")
"""gemmi's names of these polymers."""
_END_ATOMS: Final = ("OXT", "OP3")
_TRIPLE: Final = 3


def boltz_section(
    record: EntryRecord, components: ComponentTable, rules: BoltzRules | None = None
) -> RulesetSection:
    """The first assembly as Boltz prepares it.

    Raises:
        EntryRefused: Boltz fails on the entry; the message has the reason.
    """
    return _Preparation(record, components, rules or BoltzRules()).section()


class _Chain(NamedTuple):
    """A chain of the asymmetric unit, in the components' order of atoms."""

    atoms: AtomRows
    """Residues numbered from 0."""
    sources: list[int]
    """Residue of the record for each; -1 if unresolved."""

    def copied(self, number: int, copy: _Copy) -> AtomRows:
        """The atoms of a copy, with its number in the assembly."""
        ones = np.ones(len(self.atoms), np.int64)
        return dataclasses.replace(
            self.atoms,
            chain=number * ones,
            operator=copy.operator * ones,
            copy=copy.number * ones,
        )

    def atom(self, residue: int, name: str) -> int | None:
        """Row of an atom, given its residue of the record; None if there is none."""
        if residue not in self.sources:
            return None
        in_residue = self.atoms.res_id == self.sources.index(residue)
        rows: list[int] = np.flatnonzero(in_residue & (self.atoms.name == name)).tolist()
        return rows[0] if rows else None


class _Copy(NamedTuple):
    asym: int
    operator: int
    number: int
    """Number among the copies of its chain, from 0."""
    suffix: str
    """What gemmi appends to the chain's name; empty without an assembly."""


@dataclass(slots=True)
class _Preparation(Cleaning[BoltzRules]):
    is_first: Bool[np.ndarray, " R"] = field(init=False)
    """True for the first residue of a number in the author's chain, waters excluded."""
    numbered: dict[tuple[str, str, str], int] = field(init=False)
    """Those residues by author's chain, number and insertion code; empty unless links need it."""
    covalent: set[int] = field(init=False)
    """Residues with a covalent link."""
    further_runs: dict[int, list[int]] = field(init=False)
    """Later runs of a residue's atoms, by its first: those of monomers listed atom by atom."""
    file_atoms: AtomRows = field(init=False)
    """Atoms of the file."""

    def __post_init__(self) -> None:
        record = self.record
        chains = record.residue_chain()
        authors = np.array(record.chain_author)[chains].tolist()
        numbers = map(str, record.residue_author.tolist())
        letters = record.residue_insertion.tolist()
        by_author: dict[tuple[str, str, str], int] = {}
        self.further_runs = defaultdict(list)
        for row, key in enumerate(zip(authors, numbers, letters, strict=True)):
            if record.residue_name[row] in WATERS:
                continue
            first = by_author.setdefault(key, row)
            same_name = record.residue_name[first] == record.residue_name[row]
            if row > first and same_name and chains[first] == chains[row]:
                self.further_runs[first].append(row)
        self.is_first = np.isin(np.arange(record.num_residues), list(by_author.values()))
        by_number = self.rules.links_by_number and not record.copies
        self.numbered = by_author if by_number else {}
        ends = (end for link in record.links if self._is_covalent(link) for end in link.ends)
        self.covalent = {self.numbered.get(end.author, end.residue) for end in ends} - {-1}
        rows = np.arange(record.num_atoms)
        self.file_atoms = AtomRows.of_record(record, rows, record.chain_entity, record.residue_seq)

    def section(self) -> RulesetSection:
        record = self.record
        unit = {asym: chain for asym in self._gemmi_order() if (chain := self._chain(asym))}
        copies = list(self._copies(unit))
        if not copies:
            raise self.refusal("no chain is left")
        atoms = concatenated([unit[copy.asym].copied(row, copy) for row, copy in enumerate(copies)])
        apply_operators(atoms, record, single=False)
        links = self._links(copies, unit, run_starts(atoms.chain))
        resolved = np.concatenate([np.array(unit[copy.asym].sources) >= 0 for copy in copies])
        if len(unit) < len(copies):
            atoms, links, resolved = self._merged(atoms, links, resolved)
            rows, atoms.chain = np.unique(atoms.chain, return_inverse=True)
            copies = [copies[row] for row in rows]
        starts, residues = run_starts(atoms.chain), run_starts(atoms.chain, atoms.res_id)
        refused = refused_chains(atoms, residues, resolved, links, self.rules)
        for row, reason in refused.items():
            self._drop_chain(int(atoms.asym[starts[row]]), reason)
        atoms.bonds = np.concatenate([atoms.bonds, links])
        columns = atoms.columns(starts, residues)
        labels = record.chain_label
        return RulesetSection(
            project="boltz",
            chain_name=np.array([f"{labels[copy.asym]}{copy.suffix}" for copy in copies]),
            chain_number=np.arange(len(copies)),
            chain_type=atoms.kind[starts],
            chain_entity=atoms.entity[starts],
            interface=groups_in_contact(atoms.position, atoms.chain, self.rules.interface_distance),
            **columns | {"chain_valid": ~np.isin(np.arange(len(starts)), list(refused))},
            dropped=tuple(self.dropped),
        )

    def _gemmi_order(self) -> list[int]:
        """Chains in gemmi's order: those of one author's chain together."""
        authors = self.record.chain_author
        return sorted(range(self.record.num_chains), key=lambda asym: authors.index(authors[asym]))

    def _copies(self, unit: Mapping[int, _Chain]) -> Iterator[_Copy]:
        """Every chain of the assembly, in gemmi's order."""
        record = self.record
        if not record.copies:
            if record.oligomeric_count:
                raise self.refusal("an assembly of no chains")
            yield from (_Copy(asym, -1, 0, "") for asym in unit)
            return
        operations = [(row, operator) for row in record.copies for operator in row.operators]
        numbers: dict[int, int] = defaultdict(int)
        names: set[str] = set()
        for operation, (copies, operator) in enumerate(operations, 1):
            suffixes: dict[str, str] = {}
            for asym in unit:
                if record.chain_label[asym] in copies.asyms:
                    author = record.chain_author[asym]
                    if author not in suffixes:
                        suffixes[author] = _free_suffix(author, operation, names)
                    yield _Copy(asym, operator, numbers[asym], suffixes[author])
                    numbers[asym] += 1

    def _chain(self, asym: int) -> _Chain | None:
        record = self.record
        low, high = record.chain_residue[asym : asym + 2].tolist()
        rows = np.flatnonzero(self.is_first[low:high]) + low
        number = int(record.chain_entity[asym])
        if number < 0 or not len(rows):
            return None
        entity = record.entities[number]
        if entity.kind == "polymer":
            if entity.polymer not in POLYMERS:
                self._drop_chain(asym, f"a polymer that Boltz does not read: {entity.polymer}")
                return None
            kind, names = POLYMERS[entity.polymer], entity.monomers
            sources = self._residue_sources(rows, names, kind)
        elif entity.kind in ("non-polymer", "branched"):
            kind, names, sources = LIGAND, record.residue_name[rows].tolist(), rows.tolist()
        else:
            return None
        covalent = entity.kind != "non-polymer" or bool(self.covalent & set(sources))
        plans = []
        for name, source in zip(names, sources, strict=True):
            atoms = self._atoms(source)
            if name == "MSE" and kind != LIGAND:
                name = "MET"
                atoms |= {"SD": atoms["SE"]} if "SE" in atoms else {}
            component = self.components.get(name)
            if component is None or not component.heavy.any():
                if kind != LIGAND and self.rules.components_required:
                    raise self.refusal(f"component {name} is unknown")
                self._drop_chain(asym, f"component {name} is unknown")
                return None
            standard = kind != LIGAND and name in RESTYPES
            atom_rows, source_rows = _matched_atoms(component, atoms, standard, covalent)
            chain_row = record.residue_atom[source if source >= 0 else low]
            plans.append(ResiduePlan(chain_row, component, atom_rows, source_rows, int(source < 0)))
        return self._built(plans, kind, sources) if plans else None

    def _built(self, plans: Sequence[ResiduePlan], kind: int, sources: list[int]) -> _Chain:
        atoms = build_residues(self.file_atoms, plans)
        atoms.kind[:] = kind
        atoms.res_id = np.repeat(np.arange(len(plans)), [len(plan.source) for plan in plans])
        bonds = residue_bonds(atoms, self.components, run_starts(atoms.res_id), _bond_types)
        bonds[:, :2] = np.sort(bonds[:, :2], axis=1)
        if kind != LIGAND:
            swap_arginine_nitrogens(atoms)
            bonds = bonds[~np.isin(atoms.res_name[bonds[:, 0]], RESTYPES)]
        atoms.bonds = bonds
        return _Chain(atoms, sources)

    def _residue_sources(
        self, rows: Integer[np.ndarray, " n"], names: Sequence[str], kind: int
    ) -> list[int]:
        """Residue of every monomer of a chain's sequence; -1 if unresolved."""
        record = self.record
        if self.rules.residues_by_alignment:
            return aligned_residues(record, rows.tolist(), names, _ALIGNED[kind], self._atoms)
        index = record.residue_seq[rows] - 1
        inside = (index >= 0) & (index < len(names))
        rows, index = rows[inside], index[inside]
        # Of several monomers with one number, the sequence has the first.
        same = record.residue_name[rows] == np.array(names)[index]
        sources = np.full(len(names), -1)
        sources[index[same][::-1]] = rows[same][::-1]
        return [int(row) for row in sources]

    def _atoms(self, residue: int) -> dict[str, int]:
        """Rows of a residue's atoms by name, the first alternate location of each."""
        by_name: dict[str, int] = {}
        record = self.record
        runs = [residue, *self.further_runs.get(residue, [])] if residue >= 0 else []
        for run in runs:
            for row in range(*record.residue_atom[run : run + 2]):
                if record.atom_element[row] not in HYDROGENS:
                    by_name.setdefault(str(record.atom_name[row]), row)
        return by_name

    def _is_covalent(self, link: Link) -> bool:
        """True if a link is covalent and, in an assembly, gemmi finds both ends in one copy."""
        copies, rules = self.record.copies, self.rules
        if link.kind != "covale" or (rules.links_by_number and not copies):
            return link.kind == "covale"
        first, second = link.ends
        unknown = rules.symmetry_required and not first.symmetry
        if first.symmetry != second.symmetry or (copies and unknown):
            return False
        asyms = {first.asym, second.asym}
        return not copies or (
            all(map(self._has_atom, link.ends)) and any(asyms <= set(copy.asyms) for copy in copies)
        )

    def _has_atom(self, end: LinkEnd) -> bool:
        """True if the first conformation has the atom: gemmi copies no other link."""
        row = end.residue
        return row >= 0 and bool(self.is_first[row]) and end.atom in self._atoms(row)

    def _links(
        self,
        copies: Sequence[_Copy],
        unit: Mapping[int, _Chain],
        starts: Integer[np.ndarray, " C"],
    ) -> Integer[np.ndarray, "b 3"]:
        """Bonds of every covalent link, in all copies where one operator moves both ends."""
        record = self.record
        chain_of = record.residue_chain()
        starts_of: dict[tuple[int, int], list[int]] = defaultdict(list)
        for copy, start in zip(copies, starts.tolist(), strict=True):
            starts_of[copy.asym, copy.operator].append(start)
        bonds = []
        for link in record.links:
            if link.kind != "covale":
                continue
            if not self._is_covalent(link):
                reason = "an end is another conformation, in another copy or absent"
                self._drop_link(link.ends[0], reason)
                continue
            ends = []
            for end in link.ends:
                residue = self.numbered.get(end.author, end.residue)
                asym = int(chain_of[residue]) if residue >= 0 else -1
                atom = unit[asym].atom(residue, end.atom) if asym in unit else None
                if atom is not None:
                    ends.append((asym, atom))
                elif self.rules.links_required:
                    text = f"{end.asym} {end.component} {end.atom}"
                    raise self.refusal(f"a covalent link to {text}, which Boltz does not have")
                else:
                    self._drop_link(end, "the component has no such atom")
            if len(ends) < 2:
                continue
            (first_asym, first_atom), (second_asym, second_atom) = ends
            for operator in dict.fromkeys(copy.operator for copy in copies):
                rows = (starts_of[asym, operator] for asym in (first_asym, second_asym))
                for first, second in zip(*rows, strict=False):
                    bonds.append((first + first_atom, second + second_atom, 0))
        return np.array(bonds, np.int64).reshape(-1, 3)

    def _merged(
        self,
        atoms: AtomRows,
        links: Integer[np.ndarray, "b 3"],
        resolved: Bool[np.ndarray, " R"],
    ) -> tuple[AtomRows, Integer[np.ndarray, "_ 3"], Bool[np.ndarray, " _"]]:
        """Atoms, links and resolved residues after gemmi has merged copies at one place.

        An ion on an axis of symmetry is one ion. Its coordinates are those of the first copy;
        Boltz has the mean of the copies, which are less than `merge_distance` apart.
        """
        pairs = contacts(atoms.position, atoms.chain, self.rules.merge_distance)
        merged = np.zeros(len(atoms), bool)
        for first, second in pairs[atoms.row[pairs[:, 0]] == atoms.row[pairs[:, 1]]].tolist():
            merged[second] |= not merged[first]
        if not merged.any():
            return atoms, links, resolved
        atoms.row[merged], atoms.position[merged] = -1, np.nan
        starts = run_starts(atoms.chain, atoms.res_id)
        empty = np.logical_or.reduceat(merged, starts)
        empty &= ~np.logical_or.reduceat(atoms.row >= 0, starts)
        resolved = resolved & ~empty
        chain = atoms.chain[starts]
        removed = empty & (atoms.kind[starts] == LIGAND)
        removed |= np.bincount(chain, resolved)[chain] == 0
        self.report(atoms, starts[removed], "residue", "at the place of another copy")
        retained = ~removed[segment_ids(starts, len(atoms))]
        links = links[~merged[links[:, :2]].any(axis=1)]
        links[:, :2] = (np.cumsum(retained) - 1)[links[:, :2]]
        atoms = atoms.take(retained)
        starts = run_starts(atoms.chain, atoms.res_id)
        first_residue = np.searchsorted(atoms.chain[starts], atoms.chain)
        number = segment_ids(starts, len(atoms)) - first_residue
        atoms.res_id = np.where(atoms.kind == LIGAND, number, atoms.res_id)
        return atoms, links, resolved[~removed]

    def _drop_link(self, end: LinkEnd, reason: str) -> None:
        self.drop("link", end.asym, f"{end.component}.{end.atom}", reason)

    def _drop_chain(self, asym: int, reason: str) -> None:
        is_first = self.record.chain_residue[asym]
        name = str(self.record.residue_name[is_first])
        self.drop("chain", self.record.chain_label[asym], name, reason)


def _free_suffix(author: str, number: int, names: set[str]) -> str:
    """The first number from `number` that gives an author's chain a new name; adds it to them."""
    while f"{author}{number}" in names:
        number += 1
    names.add(f"{author}{number}")
    return str(number)


def _matched_atoms(
    component: Component, by_name: Mapping[str, int], standard: bool, covalent: bool
) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Component rows of a residue's atoms, and their rows in `by_name`; -1 if unresolved."""
    names, rows = component.name.tolist(), np.flatnonzero(component.heavy).tolist()
    if standard:
        excluded = (*_END_ATOMS, "CG") if component.code == "UNK" else _END_ATOMS
        rows = [row for row in rows if names[row] not in excluded]
        by_name = {name.upper(): row for name, row in by_name.items()}
    elif len(rows) == 1:  # whatever its name in the file
        by_name = {names[rows[0]]: min(by_name.values(), default=-1)}
    elif covalent:  # without leaving atoms that a bond displaced
        rows = [row for row in rows if not component.leaving[row] or names[row] in by_name]
    source = [by_name.get(names[row], -1) for row in rows]
    return np.array(rows, np.int64), np.array(source, np.int64)


def _bond_types(component: Component) -> Integer[np.ndarray, " b"]:
    """Bond types numbered as in Boltz: 1 to 3 by order, 0 any other."""
    return np.where(component.bond_order <= _TRIPLE, component.bond_order, 0)

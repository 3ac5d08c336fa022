"""What Boltz 1 makes of a record (its `scripts/process/mmcif.py`, `rcsb.py` and static filters).

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
    Part,
    exchange_arginines,
    joined_rows,
    laid_out,
    place,
    runs,
)
from evofeed.featurize.records.rulesets.boltz_alignment import aligned_residues
from evofeed.featurize.records.rulesets.bonds import residue_bonds
from evofeed.featurize.records.rulesets.cleaning import Cleaning, Rules
from evofeed.featurize.records.rulesets.contacts import clashing, contacts, near_groups, touching
from evofeed.featurize.records.rulesets.standard import (
    EXCLUDED_LIGANDS,
    STANDARD_NUCLEIC,
    STANDARD_PROTEIN,
)
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import (
    HYDROGENS,
    LIGAND,
    POLYMERS,
    PROTEIN,
    WATERS,
    EntryRecord,
    Link,
    LinkEnd,
    run_starts,
)
from evofeed.protein.ruleset_section import RulesetSection

_STANDARD: Final = (*STANDARD_PROTEIN, *STANDARD_NUCLEIC)
"""Residues that are one token."""
_UNKNOWN: Final = ("UNK", "DN", "N")
"""Unknown residue of each kind of polymer."""
_ALIGNED: Final = ("PeptideL", "Dna", "Rna")
"""gemmi's names of these polymers."""
_END_ATOMS: Final = ("OXT", "OP3")
_TRIPLE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzRules(Rules):
    """Limits of Boltz's filters, and its faults by name: True does as Boltz does."""

    min_residues: int = 4
    """Residues of a polymer that were seen, at least."""
    max_residues: int = 5000
    """Residues of a polymer that were seen, at most."""
    max_step: float = 10.0
    """Ångström between the CA of neighbours."""
    clash_distance: float = 1.7
    """Ångström."""
    clash_fraction: float = 0.3
    """Of the atoms of a chain that were seen."""
    interface_distance: float = 5.0
    """Ångström."""
    links_required: bool = True
    """A covalent link whose atoms it does not have fails the entry."""
    links_by_number: bool = True
    """Without an assembly, ends of links are found by number, whatever component they name."""
    residues_by_alignment: bool = True
    """Residues are aligned to the sequence instead of numbered, so that one between two gaps may
    move; one that the sequence does not have fails the entry."""
    components_required: bool = True
    """A residue of a polymer without a component fails the entry."""
    max_len_of_resolved: bool = True
    """The longest polymers are told by the residues that were seen, not by their sequence."""
    modified_are_unknown: bool = True
    """Polymers of modified residues alone are left out as unknown ones are."""
    bonded_atoms_clash: bool = True
    """Atoms joined by a link count as a clash."""


def boltz_section(
    record: EntryRecord, components: ComponentTable, rules: BoltzRules | None = None
) -> RulesetSection:
    """The first assembly as Boltz prepares it.

    Raises:
        EntryRefused: Boltz fails on it; the message has the reason.
    """
    return _Preparation(record, components, rules or BoltzRules()).section()


class _Chain(NamedTuple):
    """A chain of the asymmetric unit, in the components' order of atoms."""

    atoms: AtomRows
    """Residues numbered from 0."""
    sources: list[int]
    """Residue of the record of each; -1 for one that nobody saw."""

    def copied(self, number: int, copy: _Copy) -> AtomRows:
        """The atoms of a copy, which is so many in the assembly."""
        same = np.ones(len(self.atoms), np.int64)
        return dataclasses.replace(
            self.atoms,
            chain=number * same,
            operator=copy.operator * same,
            copy=max(copy.number - 1, 0) * same,
        )

    def atom(self, residue: int, name: str) -> int | None:
        """Row of an atom of a residue of the record; None if it is not there."""
        if residue not in self.sources:
            return None
        own = self.atoms.res_id == self.sources.index(residue)
        rows: list[int] = np.flatnonzero(own & (self.atoms.name == name)).tolist()
        return rows[0] if rows else None


class _Copy(NamedTuple):
    asym: int
    operator: int
    number: int
    """Among the copies of its chain, from 1; 0 without an assembly."""


@dataclass(slots=True)
class _Preparation(Cleaning[BoltzRules]):
    first: Bool[np.ndarray, " R"] = field(init=False)
    """Residues that are the first of their number in the author's chain, waters aside."""
    numbered: dict[tuple[str, str, str], int] = field(init=False)
    """These by the author's chain, number and insertion code, where links are found so."""
    covalent: set[int] = field(init=False)
    """Residues with a covalent link."""
    every: AtomRows = field(init=False)
    """Atoms of the file."""

    def __post_init__(self) -> None:
        record = self.record
        authors = np.array(record.chain_author)[record.residue_chain()].tolist()
        numbers, letters = (
            map(str, record.residue_author.tolist()),
            record.residue_insertion.tolist(),
        )
        found: dict[tuple[str, str, str], int] = {}
        for row, key in enumerate(zip(authors, numbers, letters, strict=True)):
            if record.residue_name[row] not in WATERS:
                found.setdefault(key, row)
        self.first = np.isin(np.arange(record.num_residues), list(found.values()))
        by_number = self.rules.links_by_number and not record.copies
        self.numbered = found if by_number else {}
        ends = (end for link in record.links if self._is_covalent(link) for end in link.ends)
        self.covalent = {self.numbered.get(end.author, end.residue) for end in ends} - {-1}
        rows = np.arange(record.num_atoms)
        self.every = AtomRows.of_record(record, rows, record.chain_entity, record.residue_seq)

    def section(self) -> RulesetSection:
        record = self.record
        order = self._ordered(range(record.num_chains))
        unit = {asym: made for asym in order if (made := self._chain(asym))}
        copies = list(self._copies(unit))
        if not copies:
            raise self.refusal("no chain is left")
        atoms = joined_rows([unit[one.asym].copied(row, one) for row, one in enumerate(copies)])
        place(atoms, record, single=False)
        starts = run_starts(atoms.chain)
        links = self._links(copies, unit, starts)
        sources = [np.array(unit[one.asym].sources) for one in copies]
        valid = self._valid(atoms, sources, links)
        atoms.bonds = np.concatenate([atoms.bonds, links])
        columns = atoms.columns(starts, run_starts(atoms.chain, atoms.res_id))
        labels = record.chain_label
        return RulesetSection(
            project="boltz",
            chain_name=np.array([f"{labels[one.asym]}{one.number or ''}" for one in copies]),
            chain_number=np.arange(len(copies)),
            chain_type=atoms.kind[starts],
            chain_entity=atoms.entity[starts],
            interface=near_groups(atoms.position, atoms.chain, self.rules.interface_distance),
            **columns | {"chain_valid": valid},
            dropped=tuple(self.dropped),
        )

    def _ordered(self, chains: Sequence[int]) -> list[int]:
        """Chains as gemmi lists them: those of one author's chain together."""
        authors = [self.record.chain_author[asym] for asym in chains]
        return sorted(chains, key=lambda asym: authors.index(self.record.chain_author[asym]))

    def _copies(self, unit: Mapping[int, _Chain]) -> Iterator[_Copy]:
        """Every chain of the assembly, in gemmi's order."""
        record = self.record
        if not record.copies:
            if record.oligomeric_count:
                raise self.refusal("an assembly of no chains")
            yield from (_Copy(asym, -1, 0) for asym in unit)
            return
        label = {name: row for row, name in enumerate(record.chain_label)}
        numbers: dict[int, int] = defaultdict(int)
        for one in record.copies:
            chains = self._ordered([label[name] for name in one.asyms if name in label])
            for operator in one.operators:
                for asym in chains:
                    if asym in unit:
                        numbers[asym] += 1
                        yield _Copy(asym, operator, numbers[asym])

    def _chain(self, asym: int) -> _Chain | None:
        record = self.record
        low, high = record.chain_residue[asym : asym + 2].tolist()
        rows = np.flatnonzero(self.first[low:high]) + low
        number = int(record.chain_entity[asym])
        if number < 0 or not len(rows):
            return None
        entity = record.entities[number]
        if entity.kind == "polymer":
            if entity.polymer not in POLYMERS:
                self._drop_chain(asym, f"a polymer that Boltz does not read: {entity.polymer}")
                return None
            kind, names = POLYMERS[entity.polymer], entity.monomers
            sources = self._sources(rows, names, kind)
        elif entity.kind in ("non-polymer", "branched"):
            kind, names, sources = (
                LIGAND,
                record.residue_name[rows].tolist(),
                rows.tolist(),
            )
        else:
            return None
        covalent = entity.kind != "non-polymer" or bool(self.covalent & set(sources))
        parts = []
        for name, source in zip(names, sources, strict=True):
            held = self._atoms(source)
            if name == "MSE" and kind != LIGAND:
                name = "MET"
                held |= {"SD": held["SE"]} if "SE" in held else {}
            component = self.components.get(name)
            if component is None or not component.heavy.any():
                if kind != LIGAND and self.rules.components_required:
                    raise self.refusal(f"component {name} is unknown")
                self._drop_chain(asym, f"component {name} is unknown")
                return None
            standard = kind != LIGAND and name in _STANDARD
            own, seen = _matched(component, held, standard=standard, covalent=covalent)
            like = record.residue_atom[source if source >= 0 else low]
            parts.append(Part(like, component, own, seen, number=int(source < 0)))
        return self._laid_out(parts, kind, sources) if parts else None

    def _laid_out(self, parts: Sequence[Part], kind: int, sources: list[int]) -> _Chain:
        atoms = laid_out(self.every, parts)
        atoms.kind[:] = kind
        atoms.res_id = np.repeat(np.arange(len(parts)), [len(part.seen) for part in parts])
        bonds = residue_bonds(atoms, self.components, run_starts(atoms.res_id), _bond_types)
        bonds[:, :2] = np.sort(bonds[:, :2], axis=1)
        if kind != LIGAND:
            exchange_arginines(atoms)
            bonds = bonds[~np.isin(atoms.res_name[bonds[:, 0]], _STANDARD)]
        atoms.bonds = bonds
        return _Chain(atoms, sources)

    def _sources(
        self, rows: Integer[np.ndarray, " n"], names: Sequence[str], kind: int
    ) -> list[int]:
        """Residue of every monomer of a chain's sequence; -1 for one that nobody saw."""
        record = self.record
        if self.rules.residues_by_alignment:
            return aligned_residues(record, rows.tolist(), names, _ALIGNED[kind], self._atoms)
        index = record.residue_seq[rows] - 1
        inside = (index >= 0) & (index < len(names))
        rows, index = rows[inside], index[inside]
        # Another monomer of the same number goes: the sequence has the first.
        same = record.residue_name[rows] == np.array(names)[index]
        sources = np.full(len(names), -1)
        sources[index[same][::-1]] = rows[same][::-1]
        return [int(row) for row in sources]

    def _atoms(self, residue: int) -> dict[str, int]:
        """Rows of a residue's atoms by name: of alternate locations the first of each name."""
        found: dict[str, int] = {}
        if residue >= 0:
            record = self.record
            for row in range(*record.residue_atom[residue : residue + 2]):
                if record.atom_element[row] not in HYDROGENS:
                    found.setdefault(str(record.atom_name[row]), row)
        return found

    def _is_covalent(self, link: Link) -> bool:
        """Whether a link is covalent; an assembly has those that gemmi finds in a copy."""
        copies = self.record.copies
        if link.kind != "covale" or not copies:
            return link.kind == "covale"
        asyms = {end.asym for end in link.ends}
        return all(
            self._is_there(end) and end.symmetry in ("", "1_555") for end in link.ends
        ) and any(asyms <= set(one.asyms) for one in copies)

    def _is_there(self, end: LinkEnd) -> bool:
        """Whether the first conformation has the atom: gemmi copies no other link."""
        row = end.residue
        return row >= 0 and bool(self.first[row]) and end.atom in self._atoms(row)

    def _links(
        self,
        copies: Sequence[_Copy],
        unit: Mapping[int, _Chain],
        starts: Integer[np.ndarray, " C"],
    ) -> Integer[np.ndarray, "b 3"]:
        """Atoms of every covalent link, of all copies whose ends one operator places."""
        record = self.record
        chain_of = record.residue_chain()
        where: dict[tuple[int, int], list[int]] = defaultdict(list)
        for copy, start in zip(copies, starts.tolist(), strict=True):
            where[copy.asym, copy.operator].append(start)
        found = []
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
            if len(ends) < 2 or any(end.symmetry not in ("", "1_555") for end in link.ends):
                continue
            (one, first), (two, second) = ends
            for operator in dict.fromkeys(copy.operator for copy in copies):
                for a, b in zip(where[one, operator], where[two, operator], strict=False):
                    found.append((a + first, b + second, 0))
        return np.array(found, np.int64).reshape(-1, 3)

    def _drop_link(self, end: LinkEnd, reason: str) -> None:
        self.drop("link", end.asym, f"{end.component}.{end.atom}", reason)

    def _drop_chain(self, asym: int, reason: str) -> None:
        first = self.record.chain_residue[asym]
        name = str(self.record.residue_name[first])
        self.drop("chain", self.record.chain_label[asym], name, reason)

    def _valid(
        self, atoms: AtomRows, sources: Sequence[np.ndarray], links: Integer[np.ndarray, "b 3"]
    ) -> Bool[np.ndarray, " C"]:
        """Which chains no filter refuses; each filter sees all of them."""
        rules = self.rules
        pairs = contacts(atoms.position, atoms.chain, rules.clash_distance)
        if not rules.bonded_atoms_clash:
            linked = {tuple(sorted(link)) for link in links[:, :2].tolist()}
            pairs = pairs[[tuple(pair) not in linked for pair in pairs.tolist()]]
        there = np.isfinite(atoms.position).all(axis=1)
        seen = np.bincount(atoms.chain[there], minlength=len(sources))
        out = clashing(touching(pairs, atoms.chain), seen, rules.clash_fraction)
        valid = np.ones(len(sources), bool)
        for row, (low, high) in enumerate(runs(run_starts(atoms.chain), len(atoms))):
            part = atoms.take(np.arange(low, high))
            reason = (
                "clashes with another chain" if row in out else self._refused(part, sources[row])
            )
            if reason:
                valid[row] = False
                self._drop_chain(int(part.asym[0]), reason)
        return valid

    def _refused(self, chain: AtomRows, sources: np.ndarray) -> str:
        """Why a filter refuses a chain by itself; empty if none does."""
        rules, kind, names = self.rules, int(chain.kind[0]), set(chain.res_name.tolist())
        if kind == LIGAND:
            return "" if names.isdisjoint(EXCLUDED_LIGANDS) else "an excluded ligand"
        seen = int((sources >= 0).sum())
        if seen < rules.min_residues:
            return "a short polymer"
        if (seen if rules.max_len_of_resolved else len(sources)) > rules.max_residues:
            return "a long polymer"
        if rules.modified_are_unknown and kind == PROTEIN:
            names = {name if name in _STANDARD else "UNK" for name in names}
        if names == {_UNKNOWN[kind]}:
            return "all residues are unknown"
        if kind == PROTEIN:
            standard = np.isin(chain.res_name, _STANDARD)
            first = np.diff(chain.res_id, prepend=-1) > 0
            centre = chain.position[np.where(standard, chain.name == "CA", first)]
            step = np.linalg.norm(np.diff(centre, axis=0), axis=1)
            if (step > rules.max_step).any():
                return "a jump between neighbouring residues"
        return ""


def _matched(
    component: Component, held: Mapping[str, int], *, standard: bool, covalent: bool
) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Atoms of its component that a residue has, and the one held that each is; -1 for none."""
    names, rows = component.name.tolist(), np.flatnonzero(component.heavy).tolist()
    if standard:
        out = (*_END_ATOMS, "CG") if component.code == "UNK" else _END_ATOMS
        rows = [row for row in rows if names[row] not in out]
        held = {name.upper(): row for name, row in held.items()}
    elif len(rows) == 1:  # whatever the file calls it
        held = {names[rows[0]]: min(held.values(), default=-1)}
    elif covalent:  # without leaving atoms that a bond displaced
        rows = [row for row in rows if not component.leaving[row] or names[row] in held]
    seen = [held.get(names[row], -1) for row in rows]
    return np.array(rows, np.int64), np.array(seen, np.int64)


def _bond_types(component: Component) -> Integer[np.ndarray, " b"]:
    """Boltz's numbers: 1 to 3 by order, 0 any other."""
    return np.where(component.bond_order <= _TRIPLE, component.bond_order, 0)

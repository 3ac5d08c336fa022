"""What Protenix's preparation makes of a record (version 2.0, `data/core/parser.py`).

The steps stand in the order of its `get_bioassembly`: most clean the asymmetric unit, the rest the
assembly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    COVALENT_LINKS,
    AtomRows,
    connected,
    copied,
    exchanged_arginines,
    joined_rows,
    linked_bonds,
    merged_bonds,
    residue_bonds,
    runs,
    spread,
    to_methionine,
)
from evofeed.featurize.records.rulesets.contacts import contacts
from evofeed.featurize.records.rulesets.protenix_atoms import (
    Completion,
    link_kind,
    with_polymer_bonds,
)
from evofeed.featurize.records.rulesets.protenix_chains import (
    centre_atoms,
    clashing_chains,
    lopsided_links,
    near_molecules,
)
from evofeed.featurize.records.rulesets.standard import AIDS, Rules
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import (
    ALTLOC_NONE,
    HYDROGENS,
    WATERS,
    Dropped,
    EntryRecord,
    run_starts,
)
from evofeed.protein.ruleset_section import EntryRefused, RulesetSection, copies_of

PROTEIN, DNA, RNA, LIGAND = range(4)
_CRYSTALS: Final = (
    "X-RAY DIFFRACTION",
    "NEUTRON DIFFRACTION",
    "ELECTRON CRYSTALLOGRAPHY",
    "POWDER CRYSTALLOGRAPHY",
    "FIBER DIFFRACTION",
)
_UNKNOWN: Final = {
    "polypeptide(L)": "UNK",
    "polyribonucleotide": "N",
    "polydeoxyribonucleotide": "N",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixRules(Rules):
    """Limits of the preparation, and its faults by name: True does as Protenix does."""

    max_bond: float = 2.4
    """Ångström of a link of the file."""
    max_step: float = 10.0
    """Ångström between the CA of neighbours."""
    max_molecules: int = 20
    """Molecules of an assembly, unless there are fewer tokens than `max_tokens`."""
    max_tokens: int = 5120
    """Tokens up to which an assembly may have more molecules."""
    max_chains: int = 1000
    """Chains of an assembly by its own count."""
    clash_fraction: float = 0.3
    """Of the centre atoms of a chain that were seen."""
    clash_distance: float = 1.6
    """Ångström between centre atoms."""
    interface_distance: float = 5.0
    """Ångström."""
    one_letter_per_file: bool = True
    """Of alternate locations the lowest letter of the file; other residues go. Else the lowest
    letter of each residue."""
    selenium_lost: bool = True
    """MSE becomes MET in the sequence alone, so that its selenium is absent."""


def protenix_section(
    record: EntryRecord, components: ComponentTable, rules: ProtenixRules | None = None
) -> RulesetSection:
    """Assembly 1 after Protenix's preparation.

    Raises:
        EntryRefused: Protenix fails on it or leaves it out; the message has the reason.
        ComponentMissing: a residue of a polymer is not in the dictionary.
    """
    return _Preparation(record, components, rules or ProtenixRules()).section()


@dataclass(slots=True)
class _Preparation:
    record: EntryRecord
    components: ComponentTable
    rules: ProtenixRules
    dropped: list[Dropped] = field(default_factory=list)
    assembled: set[str] = field(default_factory=set)
    polymers: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.polymers = {
            number: entity.polymer or "missing"
            for number, entity in enumerate(self.record.entities)
            if entity.polymer or entity.monomers
        }

    def section(self) -> RulesetSection:
        if self.polymers and not any(one.monomers for one in self.record.entities):
            raise EntryRefused("no _entity_poly_seq", item=self.record.entry)
        atoms = self._asymmetric_unit()
        monomers = self._monomers(atoms)
        for name in ("unknown", "jumps"):
            atoms = self._without_chains(atoms, name)
        if not len(atoms):
            raise EntryRefused("no atoms are left", item=self.record.entry)
        one, two = exchanged_arginines(atoms)
        swapped, back = np.append(one, two), np.append(two, one)
        atoms.row[swapped], atoms.position[swapped] = atoms.row[back], atoms.position[back]
        if not self.rules.selenium_lost:
            to_methionine(atoms)
        present = set(atoms.entity.tolist())
        used = {entity: codes for entity, codes in monomers.items() if entity in present}
        atoms = Completion(atoms, self.components, used).whole()
        to_methionine(atoms)
        atoms = self._without_placeholders(atoms)
        if set(self.record.methods) & set(_CRYSTALS):
            aids = np.isin(atoms.res_name, AIDS) & ~np.isin(atoms.entity, list(self.polymers))
            atoms = self._without(atoms, aids, "crystallisation aid")
        if not len(atoms):
            raise EntryRefused("no atoms are left", item=self.record.entry)
        atoms.kind = self._kinds(atoms)
        atoms, names = self._assembly(atoms)
        return self._section(*self._cleaned(atoms, names))

    def _asymmetric_unit(self) -> AtomRows:
        record = self.record
        altloc = record.atom_altloc
        keep = altloc == ALTLOC_NONE
        if self.rules.one_letter_per_file:
            letters = altloc[~keep]
            keep |= altloc == (letters.min() if len(letters) else ALTLOC_NONE)
        else:
            keep |= _lowest_of_residue(record)
        rows = np.flatnonzero(keep)
        atoms = AtomRows.of_record(record, rows, record.chain_entity, self._numbers())
        _, author = np.unique(np.array(record.chain_author), return_inverse=True)
        links = linked_bonds(record, rows, COVALENT_LINKS, self.dropped)
        length = np.linalg.norm(atoms.position[links[:, 0]] - atoms.position[links[:, 1]], axis=1)
        inner = residue_bonds(atoms, self.components, atoms.residue_starts())
        atoms.bonds = merged_bonds(inner, links[length < self.rules.max_bond])
        with_polymer_bonds(
            atoms,
            self.components,
            chain=author[atoms.asym],
            res_id=record.residue_author[record.atom_residue()[rows]].astype(np.int64),
            limit=2.5,
        )
        with_polymer_bonds(atoms, self.components)
        out = np.isin(atoms.res_name, WATERS) | np.isin(atoms.element, HYDROGENS)
        return atoms.take(~out)

    def _numbers(self) -> Integer[np.ndarray, " R"]:
        """Number of every residue: the label's, or its place in a chain that has none."""
        record = self.record
        chain = record.residue_chain()
        first = record.chain_residue[:-1]
        number = record.residue_seq.astype(np.int64)
        bare = number[first] == 0
        falls = np.zeros(len(chain), bool)
        falls[1:] = np.diff(record.residue_author) < 0
        falls[first] = True
        starts = np.flatnonzero(falls)
        counted = np.arange(len(chain)) - starts[np.cumsum(falls) - 1] + 1
        return np.where(bare[chain], counted, number)

    def _monomers(self, atoms: AtomRows) -> dict[int, list[str]]:
        """Components of every polymer; of several at one number the one that is seen."""
        starts = atoms.residue_starts()
        keys = zip(atoms.entity[starts].tolist(), atoms.res_id[starts].tolist(), strict=True)
        seen = dict(zip(keys, atoms.res_name[starts].tolist(), strict=True))
        found = {}
        for number in self.polymers:
            entity = self.record.entities[number]
            codes = list(entity.monomers)
            for index, rival in entity.rivals:
                if seen.get((number, index + 1)) == rival:
                    codes[index] = rival
            found[number] = ["MET" if code == "MSE" else code for code in codes]
        return found

    def _without(self, atoms: AtomRows, out: Bool[np.ndarray, " A"], reason: str) -> AtomRows:
        starts = atoms.residue_starts()
        for row in starts[out[starts]].tolist():
            label = self.record.chain_label[atoms.asym[row]]
            name = str(atoms.res_name[row])
            part = Dropped(what="residue", chain=label, component=name, reason=reason)
            self.dropped.append(part)
        return atoms.take(~out) if out.any() else atoms

    def _without_chains(self, atoms: AtomRows, rule: str) -> AtomRows:
        out = np.zeros(len(atoms), bool)
        for low, high in runs(atoms.chain_starts(), len(atoms)):
            polymer = self.polymers.get(int(atoms.entity[low]), "")
            if rule == "unknown":
                name = _UNKNOWN.get(polymer)
                out[low:high] = name is not None and bool((atoms.res_name[low:high] == name).all())
            elif polymer == "polypeptide(L)":
                centre = np.flatnonzero(atoms.name[low:high] == "CA") + low
                step = np.diff(atoms.position[centre], axis=0)
                far = (step * step).sum(1) > self.rules.max_step**2
                out[low:high] = bool((far & (np.diff(atoms.res_id[centre]) == 1)).any())
        reason = {"unknown": "all residues are unknown", "jumps": "a jump between neighbours"}
        return self._without(atoms, out, reason[rule])

    def _without_placeholders(self, atoms: AtomRows) -> AtomRows:
        atoms = self._without(atoms, np.isin(atoms.res_name, ("UNX", "UNL")), "unknown component")
        for code, name, pairs in (
            ("ASX", "ASP", {"XD1": "OD1", "XD2": "OD2"}),
            ("GLX", "GLU", {"XE1": "OE1", "XE2": "OE2"}),
        ):
            held = atoms.res_name == code
            atoms.res_name[held] = name
            for old, new in pairs.items():
                atoms.name[held & (atoms.name == old)] = new
            atoms.element[held & (atoms.element == "X")] = "O"
        return atoms

    def _kinds(self, atoms: AtomRows) -> Integer[np.ndarray, " A"]:
        """What every residue's component is, ligand for all of what is no polymer."""
        names, inverse = np.unique(atoms.res_name, return_inverse=True)
        kinds = np.array([component_kind(self.components.get(name)) for name in names.tolist()])
        return np.where(np.isin(atoms.entity, list(self.polymers)), kinds[inverse], LIGAND)

    def _assembly(self, unit: AtomRows) -> tuple[AtomRows, list[str]]:
        """Copies in the order of the table, and the names of their chains.

        `AtomRows.copy` numbers the chains of an entity.
        """
        record = self.record
        count = record.oligomeric_count
        if not count.isdecimal() or not 0 < int(count) <= self.rules.max_chains:
            raise EntryRefused(f"oligomeric_count of the assembly is {count!r}", item=record.entry)
        pieces = [moved for _, moved in copied(unit, record)] if record.copies else [unit]
        if not sum(map(len, pieces)):
            raise EntryRefused("the assembly has no atoms", item=record.entry)
        atoms = joined_rows(pieces)
        self.assembled = {record.entities[row].name for row in np.unique(atoms.entity).tolist()}
        starts = run_starts(atoms.asym, falling=atoms.res_id)
        seen: dict[int, int] = {}
        names = []
        for row in starts.tolist():
            asym = int(atoms.asym[row])
            copy = seen[asym] = seen.get(asym, -1) + 1
            names.append(record.chain_label[asym] + (f".{copy}" if copy else ""))
        atoms.chain = spread(starts, len(atoms))
        atoms.copy = copies_of(atoms.entity[starts])[atoms.chain]
        return atoms, names

    def _cleaned(self, atoms: AtomRows, names: list[str]) -> tuple[AtomRows, list[str]]:
        label = connected(len(atoms), atoms.bonds)
        seen = np.zeros(len(atoms), bool)
        seen[label[atoms.row >= 0]] = True
        atoms = self._without(atoms, ~seen[label], "no atom was seen")
        if not len(atoms):
            raise EntryRefused("no atom was seen", item=self.record.entry)
        kept = near_molecules(atoms, self.rules.max_molecules, self.rules.max_tokens)
        if kept is None:
            raise EntryRefused("no two molecules are within 15 Å", item=self.record.entry)
        atoms = self._without(atoms, ~kept, "far from the molecules that are kept")
        out = clashing_chains(atoms, names, self.rules.clash_distance, self.rules.clash_fraction)
        atoms = self._without(atoms, np.isin(atoms.chain, sorted(out)), "clashes with a chain")
        atoms.bonds = np.delete(atoms.bonds, lopsided_links(atoms, self.polymers), axis=0)
        return atoms, names

    def _section(self, atoms: AtomRows, names: list[str]) -> RulesetSection:
        starts = run_starts(atoms.chain)
        residues = run_starts(atoms.chain, atoms.res_id, atoms.insertion, atoms.res_name)
        number = spread(starts, len(atoms))
        counts = atoms.kind_counts(starts)
        first = atoms.kind[starts]
        most = counts.max(axis=1)
        kinds = np.where(counts[np.arange(len(starts)), first] == most, first, counts.argmax(1))
        pairs = contacts(atoms.position, number, self.rules.interface_distance)
        seen = np.unique(number[centre_atoms(atoms) & (atoms.row >= 0)])
        near = np.unique(np.sort(number[pairs], axis=1), axis=0).reshape(-1, 2)
        texts = [entity.name for entity in self.record.entities]
        rank = {name: place for place, name in enumerate(sorted(self.assembled))}
        return RulesetSection(
            project="protenix",
            chain_name=np.array([names[chain] for chain in atoms.chain[starts].tolist()]),
            chain_number=atoms.chain[starts],
            chain_type=kinds,
            chain_entity=np.array([rank[texts[one]] for one in atoms.entity[starts].tolist()]),
            interface=near[np.isin(near, seen).all(1)],
            **atoms.columns(starts, residues),
            dropped=tuple(self.dropped),
        )


def component_kind(component: Component | None) -> int:
    """0 protein, 1 DNA, 2 RNA, 3 ligand, by the component's own type."""
    kind = link_kind(component) if component else 0
    if kind == 2 and component:
        return DNA if "DNA" in component.type.upper() else RNA
    return PROTEIN if kind == 1 else LIGAND


def _lowest_of_residue(record: EntryRecord) -> Bool[np.ndarray, " A"]:
    # Monomers of one number are one residue.
    starts = run_starts(record.residue_chain(), record.residue_author, record.residue_insertion)
    number = np.repeat(spread(starts, record.num_residues), np.diff(record.residue_atom))
    lowest = np.full(len(starts), np.iinfo(np.int32).max)
    there = record.atom_altloc != ALTLOC_NONE
    np.minimum.at(lowest, number[there], record.atom_altloc[there])
    mask: np.ndarray = there & (record.atom_altloc == lowest[number])
    return mask

"""A record as Protenix prepares it (version 2.0, `data/core/parser.py`).

The steps follow its `get_bioassembly`: most clean the asymmetric unit, the rest the assembly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    assembly_copies,
    author_numbered,
    concatenated,
    segment_bounds,
    segment_ids,
    single_location,
    swap_arginine_nitrogens,
    to_methionine,
)
from evofeed.featurize.records.rulesets.bonds import (
    COVALENT_LINKS,
    linked_bonds,
    merged_bonds,
    molecule_labels,
    residue_bonds,
)
from evofeed.featurize.records.rulesets.cleaning import Cleaning, Rules
from evofeed.featurize.records.rulesets.contacts import groups_in_contact
from evofeed.featurize.records.rulesets.protenix_atoms import Completion, polymer_bonds
from evofeed.featurize.records.rulesets.protenix_chains import (
    centre_atoms,
    chains_without_centre,
    clashing_chains,
    incomplete_links,
    molecules_near_interface,
)
from evofeed.featurize.records.rulesets.standard import AIDS
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import (
    ALTLOC_NONE,
    HYDROGENS,
    LIGAND,
    WATERS,
    EntryRecord,
    run_starts,
)
from evofeed.protein.ruleset_section import RulesetSection, copies_of

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
    """Largest length of a link of the file, ångström."""
    max_step: float = 10.0
    """Largest distance between the CA of neighbours, ångström."""
    max_molecules: int = 20
    """Largest number of molecules, unless they have fewer tokens than `max_tokens`."""
    max_tokens: int = 5120
    """Tokens up to which an assembly may have more molecules."""
    max_chains: int = 1000
    """Largest `oligomeric_count` of an assembly."""
    clash_fraction: float = 0.3
    """Largest fraction of the resolved centre atoms of a chain that may clash."""
    clash_distance: float = 1.6
    """Largest distance of clashing centre atoms, ångström."""
    interface_distance: float = 5.0
    """Largest distance of atoms of chains in contact, ångström."""
    one_letter_per_file: bool = True
    """Alternate locations: the lowest letter of the file; atoms with another are removed. False:
    the lowest letter of each residue."""
    selenium_lost: bool = True
    """MSE becomes MET in the sequence only, so its selenium is lost."""
    centreless_removed: bool = True
    """A chain is removed if some of its atoms are resolved, but no centre atom: the share of its
    centre atoms that clash is 0 / 0. An entry of such chains only fails."""


def protenix_section(
    record: EntryRecord, components: ComponentTable, rules: ProtenixRules | None = None
) -> RulesetSection:
    """Assembly 1 after Protenix's preparation.

    Raises:
        EntryRefused: Protenix fails on the entry or skips it; the message has the reason.
        ComponentMissing: a residue of a polymer is not in the dictionary.
    """
    return _Preparation(record, components, rules or ProtenixRules()).section()


@dataclass(slots=True)
class _Preparation(Cleaning[ProtenixRules]):
    assembled: set[str] = field(default_factory=set)
    polymers: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.polymers = {
            number: entity.polymer or "missing"
            for number, entity in enumerate(self.record.entities)
            if entity.polymer or entity.monomers
        }

    def section(self) -> RulesetSection:
        if self.polymers and not any(entity.monomers for entity in self.record.entities):
            raise self.refusal("no _entity_poly_seq")
        atoms = self._asymmetric_unit()
        monomers = self._monomers(atoms)
        for name in ("unknown", "jumps"):
            atoms = self._without_chains(atoms, name)
        if not len(atoms):
            raise self.refusal("no atoms are left")
        swap_arginine_nitrogens(atoms)
        if not self.rules.selenium_lost:
            to_methionine(atoms)
        present = set(atoms.entity.tolist())
        used = {entity: codes for entity, codes in monomers.items() if entity in present}
        if empty := [self.record.entities[row].name for row, codes in used.items() if not codes]:
            raise self.refusal(f"entity {empty[0]} has no _entity_poly_seq")
        atoms = Completion(atoms, self.components, used).complete_atoms()
        to_methionine(atoms)
        atoms = self._without_placeholders(atoms)
        if set(self.record.methods) & set(_CRYSTALS):
            aids = np.isin(atoms.res_name, AIDS) & ~np.isin(atoms.entity, list(self.polymers))
            atoms = self.without(atoms, aids, "crystallisation aid")
        if not len(atoms):
            raise self.refusal("no atoms are left")
        atoms.kind = self._kinds(atoms)
        atoms, names = self._assembly(atoms)
        return self._section(*self._cleaned(atoms, names))

    def _asymmetric_unit(self) -> AtomRows:
        record = self.record
        if self.rules.one_letter_per_file:
            letters = np.setdiff1d(record.atom_altloc, ALTLOC_NONE)
            keep = np.isin(record.atom_altloc, [ALTLOC_NONE, *letters[:1]])
        else:
            keep = single_location(record, lambda sums: min(sums, default=None))
        rows = np.flatnonzero(keep)
        atoms = AtomRows.of_record(record, rows, record.chain_entity, self._numbers(rows))
        links = linked_bonds(record, rows, COVALENT_LINKS, self.dropped)
        length = np.linalg.norm(atoms.position[links[:, 0]] - atoms.position[links[:, 1]], axis=1)
        starts = atoms.residue_starts()
        within = residue_bonds(atoms, self.components, starts)
        atoms.bonds = merged_bonds(within, links[length < self.rules.max_bond])
        named = author_numbered(atoms, record)
        atoms.bonds = polymer_bonds(named, self.components, starts, limit=2.5)
        atoms.bonds = polymer_bonds(atoms, self.components, starts)
        removed = np.isin(atoms.res_name, WATERS) | np.isin(atoms.element, HYDROGENS)
        return atoms.take(~removed)

    def _numbers(self, rows: Integer[np.ndarray, " A"]) -> Integer[np.ndarray, " R"]:
        """Number of every residue: the label's, or without one the position in its chain among
        the residues that have any of these atoms."""
        record = self.record
        number = record.residue_seq.astype(np.int64)
        residues = np.unique(record.atom_residue()[rows])
        chain, author = record.residue_chain()[residues], record.residue_author[residues]
        order = segment_ids(
            run_starts(chain, author, record.residue_insertion[residues]), len(residues)
        )
        starts = run_starts(chain, falling=author)
        counted = order - order[starts][segment_ids(starts, len(residues))] + 1
        number[residues] = np.where(number[residues] == 0, counted, number[residues])
        return number

    def _monomers(self, atoms: AtomRows) -> dict[int, list[str]]:
        """Components of every polymer; of several at one number, the one with atoms."""
        starts = atoms.residue_starts()
        keys = zip(atoms.entity[starts].tolist(), atoms.res_id[starts].tolist(), strict=True)
        present = dict(zip(keys, atoms.res_name[starts].tolist(), strict=True))
        monomers = {}
        for number in self.polymers:
            entity = self.record.entities[number]
            codes = list(entity.monomers)
            for index, rival in entity.rivals:
                if present.get((number, index + 1)) == rival:
                    codes[index] = rival
            monomers[number] = ["MET" if code == "MSE" else code for code in codes]
        return monomers

    def _without_chains(self, atoms: AtomRows, rule: str) -> AtomRows:
        removed = np.zeros(len(atoms), bool)
        for low, high in segment_bounds(atoms.chain_starts(), len(atoms)):
            polymer = self.polymers.get(int(atoms.entity[low]), "")
            if rule == "unknown":
                unknown = _UNKNOWN.get(polymer)
                names = atoms.res_name[low:high]
                removed[low:high] = unknown is not None and bool((names == unknown).all())
            elif polymer == "polypeptide(L)":
                centre = np.flatnonzero(atoms.name[low:high] == "CA") + low
                step = np.diff(atoms.position[centre], axis=0)
                far = (step * step).sum(1) > self.rules.max_step**2
                removed[low:high] = bool((far & (np.diff(atoms.res_id[centre]) == 1)).any())
        reason = {"unknown": "all residues are unknown", "jumps": "a jump between neighbours"}
        return self.without(atoms, removed, reason[rule])

    def _without_placeholders(self, atoms: AtomRows) -> AtomRows:
        atoms = self.without(atoms, np.isin(atoms.res_name, ("UNX", "UNL")), "unknown component")
        for code, name, pairs in (
            ("ASX", "ASP", {"XD1": "OD1", "XD2": "OD2"}),
            ("GLX", "GLU", {"XE1": "OE1", "XE2": "OE2"}),
        ):
            ambiguous = atoms.res_name == code
            atoms.res_name[ambiguous] = name
            for old, new in pairs.items():
                atoms.name[ambiguous & (atoms.name == old)] = new
            atoms.element[ambiguous & (atoms.element == "X")] = "O"
        return atoms

    def _kinds(self, atoms: AtomRows) -> Integer[np.ndarray, " A"]:
        """Molecule type of every atom: its component's in a polymer, otherwise ligand."""
        names, inverse = np.unique(atoms.res_name, return_inverse=True)
        components = (self.components.get(name) for name in names.tolist())
        kinds = np.array([component.kind if component else LIGAND for component in components])
        polymer = np.isin(atoms.entity, list(self.polymers))
        return np.where(polymer, kinds[inverse], LIGAND)

    def _assembly(self, unit: AtomRows) -> tuple[AtomRows, list[str]]:
        """Copies in the order of the table, chain names; `AtomRows.copy` counts by entity."""
        record = self.record
        count = record.oligomeric_count
        if not count.isdecimal() or not 0 < int(count) <= self.rules.max_chains:
            raise self.refusal(f"oligomeric_count of the assembly is {count!r}")
        pieces = [moved for _, moved in assembly_copies(unit, record)] if record.copies else [unit]
        if not sum(map(len, pieces)):
            raise self.refusal("the assembly has no atoms")
        atoms = concatenated(pieces)
        self.assembled = {record.entities[row].name for row in np.unique(atoms.entity).tolist()}
        starts = run_starts(atoms.asym, falling=atoms.res_id)
        last_copy: dict[int, int] = {}
        names = []
        for row in starts.tolist():
            asym = int(atoms.asym[row])
            copy = last_copy[asym] = last_copy.get(asym, -1) + 1
            names.append(record.chain_label[asym] + (f".{copy}" if copy else ""))
        atoms.chain = segment_ids(starts, len(atoms))
        atoms.copy = copies_of(atoms.entity[starts])[atoms.chain]
        return atoms, names

    def _cleaned(self, atoms: AtomRows, names: list[str]) -> tuple[AtomRows, list[str]]:
        rules, label = self.rules, molecule_labels(len(atoms), atoms.bonds)
        resolved = np.zeros(len(atoms), bool)
        resolved[label[atoms.row >= 0]] = True
        atoms = self.without(atoms, ~resolved[label], "no atom is resolved")
        if not len(atoms):
            raise self.refusal("no atom is resolved")
        near = molecules_near_interface(atoms, rules.max_molecules, rules.max_tokens)
        if near is None:
            raise self.refusal("no two molecules are within 15 Å")
        atoms = self.without(atoms, ~near, "far from the molecules that are kept")
        clashing = clashing_chains(atoms, names, rules.clash_distance, rules.clash_fraction)
        atoms = self.without(atoms, np.isin(atoms.chain, sorted(clashing)), "clashes with a chain")
        if rules.centreless_removed:
            centreless = np.isin(atoms.chain, chains_without_centre(atoms))
            atoms = self.without(atoms, centreless, "no centre atom is resolved")
        if not len(atoms):
            raise self.refusal("no centre atom is resolved")
        atoms.bonds = np.delete(atoms.bonds, incomplete_links(atoms, self.polymers), axis=0)
        return atoms, names

    def _section(self, atoms: AtomRows, names: list[str]) -> RulesetSection:
        starts = run_starts(atoms.chain)
        residues = run_starts(atoms.chain, atoms.res_id, atoms.insertion, atoms.res_name)
        number = segment_ids(starts, len(atoms))
        counts = atoms.kind_counts(starts)
        first = atoms.kind[starts]
        largest = counts.max(axis=1)
        kinds = np.where(counts[np.arange(len(starts)), first] == largest, first, counts.argmax(1))
        near = groups_in_contact(atoms.position, number, self.rules.interface_distance)
        resolved = np.unique(number[centre_atoms(atoms) & (atoms.row >= 0)])
        texts = [entity.name for entity in self.record.entities]
        rank = {name: position for position, name in enumerate(sorted(self.assembled))}
        return RulesetSection(
            project="protenix",
            chain_name=np.array([names[chain] for chain in atoms.chain[starts].tolist()]),
            chain_number=atoms.chain[starts],
            chain_type=kinds,
            chain_entity=np.array([rank[texts[row]] for row in atoms.entity[starts].tolist()]),
            interface=near[np.isin(near, resolved).all(1)],
            **atoms.columns(starts, residues),
            dropped=tuple(self.dropped),
        )

"""What Protenix's preparation makes of a record (version 2.0, `data/core/parser.py`).

The steps stand in the order of its `get_bioassembly`: most clean the asymmetric unit, the rest the
assembly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    by_author,
    copied,
    exchange_arginines,
    joined_rows,
    one_location,
    runs,
    spread,
    to_methionine,
)
from evofeed.featurize.records.rulesets.bonds import (
    COVALENT_LINKS,
    connected,
    linked_bonds,
    merged_bonds,
    residue_bonds,
)
from evofeed.featurize.records.rulesets.cleaning import Cleaning, Rules
from evofeed.featurize.records.rulesets.contacts import near_groups
from evofeed.featurize.records.rulesets.protenix_atoms import (
    Completion,
    polymer_bonds,
)
from evofeed.featurize.records.rulesets.protenix_chains import (
    centre_atoms,
    clashing_chains,
    lopsided_links,
    near_molecules,
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
        if self.polymers and not any(one.monomers for one in self.record.entities):
            raise self.refusal("no _entity_poly_seq")
        atoms = self._asymmetric_unit()
        monomers = self._monomers(atoms)
        for name in ("unknown", "jumps"):
            atoms = self._without_chains(atoms, name)
        if not len(atoms):
            raise self.refusal("no atoms are left")
        exchange_arginines(atoms)
        if not self.rules.selenium_lost:
            to_methionine(atoms)
        present = set(atoms.entity.tolist())
        used = {entity: codes for entity, codes in monomers.items() if entity in present}
        atoms = Completion(atoms, self.components, used).whole()
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
            keep = one_location(record, lambda sums: min(sums, default=None))
        rows = np.flatnonzero(keep)
        atoms = AtomRows.of_record(record, rows, record.chain_entity, self._numbers())
        links = linked_bonds(record, rows, COVALENT_LINKS, self.dropped)
        length = np.linalg.norm(atoms.position[links[:, 0]] - atoms.position[links[:, 1]], axis=1)
        starts = atoms.residue_starts()
        inner = residue_bonds(atoms, self.components, starts)
        atoms.bonds = merged_bonds(inner, links[length < self.rules.max_bond])
        named = by_author(atoms, record)
        atoms.bonds = polymer_bonds(named, self.components, starts, limit=2.5)
        atoms.bonds = polymer_bonds(atoms, self.components, starts)
        out = np.isin(atoms.res_name, WATERS) | np.isin(atoms.element, HYDROGENS)
        return atoms.take(~out)

    def _numbers(self) -> Integer[np.ndarray, " R"]:
        """Number of every residue: the label's, or its place in a chain that has none."""
        record = self.record
        chain = record.residue_chain()
        first = record.chain_residue[:-1]
        number = record.residue_seq.astype(np.int64)
        bare = number[first] == 0
        starts = run_starts(chain, falling=record.residue_author)
        counted = np.arange(len(chain)) - starts[spread(starts, len(chain))] + 1
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
        return self.without(atoms, out, reason[rule])

    def _without_placeholders(self, atoms: AtomRows) -> AtomRows:
        atoms = self.without(atoms, np.isin(atoms.res_name, ("UNX", "UNL")), "unknown component")
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
        found = (self.components.get(name) for name in names.tolist())
        kinds = np.array([one.kind if one else LIGAND for one in found])
        polymer = np.isin(atoms.entity, list(self.polymers))
        return np.where(polymer, kinds[inverse], LIGAND)

    def _assembly(self, unit: AtomRows) -> tuple[AtomRows, list[str]]:
        """Copies in the order of the table, and the names of their chains.

        `AtomRows.copy` numbers the chains of an entity.
        """
        record = self.record
        count = record.oligomeric_count
        if not count.isdecimal() or not 0 < int(count) <= self.rules.max_chains:
            raise self.refusal(f"oligomeric_count of the assembly is {count!r}")
        pieces = [moved for _, moved in copied(unit, record)] if record.copies else [unit]
        if not sum(map(len, pieces)):
            raise self.refusal("the assembly has no atoms")
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
        atoms = self.without(atoms, ~seen[label], "no atom was seen")
        if not len(atoms):
            raise self.refusal("no atom was seen")
        kept = near_molecules(atoms, self.rules.max_molecules, self.rules.max_tokens)
        if kept is None:
            raise self.refusal("no two molecules are within 15 Å")
        atoms = self.without(atoms, ~kept, "far from the molecules that are kept")
        out = clashing_chains(atoms, names, self.rules.clash_distance, self.rules.clash_fraction)
        atoms = self.without(atoms, np.isin(atoms.chain, sorted(out)), "clashes with a chain")
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
        near = near_groups(atoms.position, number, self.rules.interface_distance)
        seen = np.unique(number[centre_atoms(atoms) & (atoms.row >= 0)])
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

"""A record as OpenFold3 cleans it (version 0.5.0, `preprocessing/structure.py`).

The steps follow its `cleanup_structure_of3`; AlphaFold 3 SI 2.5.4 gives the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    arginines_to_swap,
    assembly_copies,
    author_numbered,
    concatenated,
    segment_bounds,
    segment_ids,
    single_location,
    to_methionine,
)
from evofeed.featurize.records.rulesets.bonds import (
    BIOTITE_LINKS,
    COORDINATION,
    COVALENT_LINKS,
    chain_bonds,
    component_rows,
    linked_bonds,
    merged_bonds,
    molecule_labels,
    residue_bonds,
)
from evofeed.featurize.records.rulesets.cleaning import Cleaning, Rules
from evofeed.featurize.records.rulesets.contacts import contact_rows, contacts, groups_in_contact
from evofeed.featurize.records.rulesets.standard import AIDS, STANDARD_NUCLEIC, STANDARD_PROTEIN
from evofeed.featurize.records.rulesets.unresolved import entity_numbers, with_unresolved_atoms
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import HYDROGENS, WATERS, EntryRecord
from evofeed.protein.ruleset_section import RulesetSection

PROTEIN, RNA, DNA, LIGAND = range(4)
_CHAIN_TYPE: Final = np.array([0, 2, 1, 3])
_LINKS: Final = COVALENT_LINKS | {"metalc": COORDINATION}
_PROTEIN_TYPES: Final = (
    "{0}-PEPTIDE LINKING|{0}-BETA-PEPTIDE, C-GAMMA LINKING|{0}-GAMMA-PEPTIDE, C-DELTA LINKING|"
    "{0}-PEPTIDE NH3 AMINO TERMINUS|{0}-PEPTIDE COOH CARBOXY TERMINUS|PEPTIDE LINKING|PEPTIDE-LIKE"
)
_NUCLEIC_TYPES: Final = "{0} LINKING|L-{0} LINKING|{0} OH 5 PRIME TERMINUS|{0} OH 3 PRIME TERMINUS"
_KINDS: Final = (
    {name: PROTEIN for hand in "DL" for name in _PROTEIN_TYPES.format(hand).split("|")}
    | dict.fromkeys(_NUCLEIC_TYPES.format("RNA").split("|"), RNA)
    | dict.fromkeys(_NUCLEIC_TYPES.format("DNA").split("|"), DNA)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFold3Rules(Rules):
    """Limits of the cleaning, and its faults by name: True does as OpenFold3 does."""

    max_short: int = 3
    """Polymers with at most this many resolved residues are removed."""
    clash_distance: float = 1.7
    """Largest distance of clashing atoms, ångström."""
    clash_fraction: float = 0.3
    """Largest fraction of the atoms of a chain that may clash."""
    max_step: float = 10.0
    """Largest distance between the CA of neighbours, ångström."""
    max_bond: float = 2.4
    """Largest length of a bond, ångström."""
    interface_distance: float = 5.0
    """Largest distance of atoms of chains in contact, ångström."""
    tables_required: bool = True
    """An entry fails without a revision history, methods, sequences or types of components, or with
    an entity whose name is not a number."""
    letters_only: bool = True
    """Alternate locations that are not letters are dropped, so their residues are unresolved."""
    single_is_ligand: bool = True
    """A polymer with one residue in the file is a ligand."""
    aids_in_polymers: bool = True
    """Crystallisation aids are removed from polymers too."""
    first_method_only: bool = True
    """Aids are removed only if the first method is X-ray diffraction."""
    equal_copies_required: bool = True
    """Copies of a ligand of several residues that differ in atoms fail the entry."""


def openfold3_section(
    record: EntryRecord, components: ComponentTable, rules: OpenFold3Rules | None = None
) -> RulesetSection:
    """The assembly after OpenFold3's cleaning.

    Raises:
        EntryRefused: OpenFold3 fails on the entry or skips it; the message has the reason.
        ComponentMissing: a component is not in the dictionary.
    """
    return _Cleaning(record, components, rules or OpenFold3Rules()).section()


def template_chain(record: EntryRecord, components: ComponentTable, label: str) -> AtomRows:
    """A template's chain as OpenFold3 cleans it, with its unresolved atoms.

    Raises:
        InputError: the file has no such chain.
    """
    if label not in record.chain_label:
        raise InputError(f"no chain {label!r}, only {', '.join(record.chain_label)}")
    cleaning = _Cleaning(record, components, OpenFold3Rules())
    atoms = cleaning.asymmetric_unit()
    atoms = atoms.take(atoms.asym == record.chain_label.index(label))
    atoms.kind = cleaning.kinds(atoms, atoms.chain_starts())
    solvent = np.isin(atoms.res_name, WATERS) | np.isin(atoms.element, HYDROGENS)
    atoms = cleaning.in_component_order(atoms.take(~solvent))
    return with_unresolved_atoms(atoms, record, components)


@dataclass(slots=True)
class _Cleaning(Cleaning[OpenFold3Rules]):
    def section(self) -> RulesetSection:
        record, rules = self.record, self.rules
        if rules.tables_required and (missing := _missing_table(record)):
            raise self.refusal(missing)
        atoms = self._assembly(self.asymmetric_unit())
        if not len(atoms) or not atoms.occupancy.sum():
            raise self.refusal("all atoms have zero occupancy")
        to_methionine(atoms)
        nh1, nh2 = arginines_to_swap(atoms)
        atoms.name[nh1], atoms.name[nh2] = "NH2", "NH1"
        atoms = atoms.take(~np.isin(atoms.res_name, WATERS))
        methods = record.methods[:1] if rules.first_method_only else record.methods
        if "X-RAY DIFFRACTION" in methods:
            aids = np.isin(atoms.res_name, AIDS)
            if not rules.aids_in_polymers:
                aids &= atoms.kind == LIGAND
            atoms = self.without(atoms, aids, "crystallisation aid")
        atoms = atoms.take(~np.isin(atoms.element, HYDROGENS))
        atoms = self._without_short(atoms)
        atoms = self._without_unknown(atoms)
        atoms = self._without_clashes(atoms)
        atoms = self.in_component_order(atoms)
        atoms = self._without_gaps(atoms)
        if not len(atoms):
            raise self.refusal("no atoms are left after cleaning")
        atoms.bonds = atoms.bonds[self._bond_mask(atoms)]
        atoms = with_unresolved_atoms(atoms, record, self.components)
        atoms = atoms.take(~_terminal_atoms(atoms))
        if not len(atoms):
            raise self.refusal("no atoms are left after cleaning")
        self._require_equal_copies(atoms)
        return self._section(atoms)

    def asymmetric_unit(self) -> AtomRows:
        """Atoms of the file, one location each; bonds by author numbering as in biotite."""
        record = self.record
        rows = np.flatnonzero(single_location(record, self._location))
        entity = np.array([*entity_numbers(record), -1])[record.chain_entity]
        unnumbered = record.residue_seq == 0
        number = np.where(unnumbered, record.residue_author, record.residue_seq)
        atoms = AtomRows.of_record(record, rows, entity, number)
        starts = atoms.residue_starts()
        table = self.components
        atoms.bonds = merged_bonds(
            residue_bonds(atoms, table, starts),
            chain_bonds(
                author_numbered(atoms, record),
                table,
                starts,
                lambda component: BIOTITE_LINKS.get(component.type, 0),
            ),
            linked_bonds(record, rows, _LINKS, self.dropped),
        )
        return atoms

    def _location(self, sums: dict[int, float]) -> int | None:
        """The letter with the highest sum of occupancies, the first of equal ones."""
        all_symbols = not self.rules.letters_only
        letters = [letter for letter in sums if all_symbols or chr(letter).isalpha()]
        return max(letters, key=sums.__getitem__, default=None)

    def chain_name(self, atoms: AtomRows, row: int) -> str:
        return str(atoms.chain[row])

    def _assembly(self, unit: AtomRows) -> AtomRows:
        """Copies in the order of their numbers, chains numbered from 1, molecule types."""
        record = self.record
        atoms = unit
        if record.copies:
            pieces: dict[int, list[AtomRows]] = {}
            count = np.zeros(len(record.chain_label), np.int64)
            for chains, moved in assembly_copies(unit, record):
                moved.copy = count[moved.asym]
                for copy in np.unique(moved.copy).tolist():
                    pieces.setdefault(copy, []).append(moved.take(moved.copy == copy))
                count[chains] += 1
            if not pieces:
                raise self.refusal("the assembly has no atoms")
            atoms = concatenated([piece for copy in sorted(pieces) for piece in pieces[copy]])
        starts = atoms.chain_starts()
        atoms.chain = segment_ids(starts, len(atoms)) + 1
        atoms.kind = self.kinds(atoms, starts)
        return atoms

    def kinds(
        self, atoms: AtomRows, starts: Integer[np.ndarray, " c"]
    ) -> Integer[np.ndarray, " A"]:
        """Molecule type of each atom's chain, by the most frequent component type."""
        types = self.record.component_types
        names, inverse = np.unique(atoms.res_name, return_inverse=True)
        kinds = [_KINDS.get(types.get(name, ""), LIGAND) for name in names]
        atoms.kind = np.array(kinds)[inverse]
        chain: np.ndarray = atoms.kind_counts(starts).argmax(axis=1)
        residues = atoms.residue_counts(starts)
        if self.rules.single_is_ligand:
            chain[residues == 1] = LIGAND
        else:
            polymer = np.array([bool(entity.monomers) for entity in self.record.entities] + [False])
            entity = self.record.chain_entity[atoms.asym[starts]]
            chain[(residues == 1) & ~polymer[entity]] = LIGAND
        return np.asarray(chain[segment_ids(starts, len(atoms))])

    def _without_chain(self, atoms: AtomRows, chain: int, reason: str) -> AtomRows:
        """The atoms without a chain and the heteroatoms bonded to its first atom."""
        mask = atoms.chain == chain
        if not mask.any():
            return atoms
        removed = mask.copy()
        if not atoms.hetero[mask].all():
            subset = np.flatnonzero(mask | atoms.hetero)
            part = atoms.take(subset)
            molecule = molecule_labels(len(part), part.bonds)
            attached = molecule[np.flatnonzero(part.chain == chain)[0]]
            removed[subset[(molecule == attached) & part.hetero]] = True
        chains, first_rows = np.unique(np.where(removed, atoms.chain, -1), return_index=True)
        self.report(atoms, first_rows[chains >= 0], "chain", reason)
        return atoms.take(~removed)

    def _without_short(self, atoms: AtomRows) -> AtomRows:
        resolved = atoms.take((atoms.kind != LIGAND) & (atoms.occupancy > 0))
        starts = resolved.chain_starts()
        short = resolved.residue_counts(starts) <= self.rules.max_short
        for chain in resolved.chain[starts[short]].tolist():
            atoms = self._without_chain(atoms, chain, "a short polymer")
        return atoms

    def _without_unknown(self, atoms: AtomRows) -> AtomRows:
        polymer = atoms.kind != LIGAND
        identified = np.unique(atoms.chain[polymer & (atoms.res_name != "UNK")])
        for chain in np.setdiff1d(atoms.chain[polymer], identified).tolist():
            atoms = self._without_chain(atoms, chain, "all residues are unknown")
        return atoms

    def _without_clashes(self, atoms: AtomRows) -> AtomRows:
        pairs = contacts(atoms.position, atoms.chain, self.rules.clash_distance)
        bonded = np.isin(_keys(pairs, len(atoms)), _keys(atoms.bonds[:, :2], len(atoms)))
        pairs = pairs[~bonded]
        if not len(pairs):
            return atoms
        sizes = np.bincount(atoms.chain)
        touched = contact_rows(pairs, atoms.chain)
        removed = {}
        for pair in touched:
            if str(pair[0]) > str(pair[1]):
                continue  # compared as strings, as OpenFold3 does: "10" comes before "2"
            reverse = pair[::-1]
            shares = [len(touched[key]) / sizes[key[0]] for key in (pair, reverse)]
            if max(shares) > self.rules.clash_fraction:
                chain, other = pair if shares[0] > shares[1] else reverse
                removed[chain] = other
        for chain, other in removed.items():
            atoms = self._without_chain(atoms, chain, f"clashes with chain {other}")
        return atoms

    def in_component_order(self, atoms: AtomRows) -> AtomRows:
        """Each residue in the component's order, without atoms that the component lacks."""
        column = np.full(len(atoms), -1, np.int64)
        for code in np.unique(atoms.res_name).tolist():
            of_code = atoms.res_name == code
            column[of_code] = component_rows(self.components[code], atoms.name[of_code])
        number = atoms.residue_number()
        unmatched = np.flatnonzero(column < 0)
        if len(unmatched):
            _number, first = np.unique(number[unmatched], return_index=True)
            self.report(atoms, unmatched[first], "atom", "not an atom of the component")
        order = np.lexsort((column, number))
        return atoms.take(order[column[order] >= 0])

    def _without_gaps(self, atoms: AtomRows) -> AtomRows:
        alpha = atoms.take((atoms.kind == PROTEIN) & (atoms.name == "CA"))
        if len(alpha) < 2:
            return atoms
        step = np.linalg.norm(np.diff(alpha.position, axis=0), axis=1)
        number = np.diff(alpha.res_id)
        far = (step > self.rules.max_step) & ((number == 0) | (number == 1))
        far[alpha.chain_starts()[1:] - 1] = False
        for chain in np.unique(alpha.chain[:-1][far]).tolist():
            atoms = self._without_chain(atoms, chain, "a gap between neighbours")
        return atoms

    def _bond_mask(self, atoms: AtomRows) -> Bool[np.ndarray, " B"]:
        first, second, kind = atoms.bonds.T
        between = atoms.chain[first] != atoms.chain[second]
        polymers = (atoms.kind[first] != LIGAND) & (atoms.kind[second] != LIGAND)
        apart = np.abs(atoms.res_id[first] - atoms.res_id[second]) > 1
        long = np.linalg.norm(atoms.position[first] - atoms.position[second], axis=1)
        removed = between & (kind == COORDINATION)
        removed |= polymers & (between | apart)
        removed |= long > self.rules.max_bond
        number = atoms.residue_number()
        for row in np.flatnonzero(removed & (number[first] != number[second])).tolist():
            ends = (f"{atoms.res_name[a]}.{atoms.name[a]}" for a in (first[row], second[row]))
            chain = str(atoms.chain[first[row]])
            self.drop("link", chain, "-".join(ends), "not a bond that is trained on")
        mask: np.ndarray = ~removed
        return mask

    def _require_equal_copies(self, atoms: AtomRows) -> None:
        if not self.rules.equal_copies_required:
            return
        ligand = atoms.take(atoms.kind == LIGAND)
        starts = ligand.chain_starts()
        multi_residue = ligand.residue_counts(starts) > 1
        for entity in np.unique(ligand.entity[starts[multi_residue]]).tolist():
            part = atoms.take(atoms.entity == entity)
            pieces = np.split(part.name, part.chain_starts()[1:])
            if len({tuple(piece.tolist()) for piece in pieces}) > 1:
                raise self.refusal(f"copies of ligand entity {entity} differ in their atoms")

    def _section(self, atoms: AtomRows) -> RulesetSection:
        starts, residues = atoms.chain_starts(), atoms.residue_starts()
        number = segment_ids(starts, len(atoms))
        names = atoms.chain[starts].astype(str)
        near = groups_in_contact(atoms.position, number, self.rules.interface_distance)
        swapped = names[near[:, 0]] > names[near[:, 1]]
        near[swapped] = near[swapped][:, ::-1]
        near = near[np.lexsort((names[near[:, 1]], names[near[:, 0]]))]
        return RulesetSection(
            project="openfold3",
            chain_name=names,
            chain_number=np.arange(len(starts)),
            chain_type=_CHAIN_TYPE[atoms.kind[starts]],
            chain_entity=atoms.entity[starts],
            interface=near,
            **atoms.columns(starts, residues),
            dropped=tuple(self.dropped),
        )


def _missing_table(record: EntryRecord) -> str:
    """The reason OpenFold3 fails on an entry's tables; '' if none is missing."""
    polymers = [entity for entity in record.entities if entity.polymer]
    tables = {
        "_pdbx_audit_revision_history": record.release_dates,
        "_chem_comp": record.component_types,
        "_exptl": record.methods,
        "_entity_poly": polymers,
        "_entity_poly_seq": any(entity.monomers for entity in record.entities),
        "_entity_poly.pdbx_seq_one_letter_code_can": any(entity.sequence for entity in polymers),
    }
    for name, value in tables.items():
        if not value:
            return f"no {name}"
    unnumbered = [entity.name for entity in record.entities if not entity.name.isdecimal()]
    return f"the name of entity {unnumbered[0]!r} is not a number" if unnumbered else ""


def _terminal_atoms(atoms: AtomRows) -> Bool[np.ndarray, " A"]:
    """Mask of OXT in a standard last residue and OP3 in a standard first one."""
    mask = np.zeros(len(atoms), bool)
    for low, high in segment_bounds(atoms.chain_starts(), len(atoms)):
        if atoms.kind[low] == PROTEIN and atoms.res_name[high - 1] in STANDARD_PROTEIN:
            last, name = atoms.res_id[high - 1], "OXT"
        elif atoms.kind[low] in (RNA, DNA) and atoms.res_name[low] in STANDARD_NUCLEIC:
            last, name = atoms.res_id[low], "OP3"
        else:
            continue
        mask[low:high] = (atoms.res_id[low:high] == last) & (atoms.name[low:high] == name)
    return mask


def _keys(pairs: Integer[np.ndarray, "P 2"], size: int) -> Integer[np.ndarray, " P"]:
    low, high = np.sort(pairs, axis=1).T
    keys: np.ndarray = low * size + high
    return keys

"""What Boltz 1 makes of a record (its `scripts/process/mmcif.py`, `rcsb.py` and static filters).

Chains that its filters refuse stay in the tables, without tokens.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.boltz_alignment import aligned_residues
from evofeed.featurize.records.rulesets.boltz_filters import (
    DNA,
    LIGAND,
    PROTEIN,
    RNA,
    STANDARD,
    Assembly,
    BoltzRules,
    Chain,
    Residue,
)
from evofeed.featurize.records.rulesets.contacts import contacts
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import (
    HYDROGENS,
    WATERS,
    Dropped,
    Entity,
    EntryRecord,
    Link,
    LinkEnd,
    offsets,
)
from evofeed.protein.ruleset_section import EntryRefused, RulesetSection, placed

_POLYMERS: Final = {
    "polypeptide(L)": PROTEIN,
    "polydeoxyribonucleotide": DNA,
    "polyribonucleotide": RNA,
}
_ALIGNED: Final = dict(zip(_POLYMERS, ("PeptideL", "Dna", "Rna"), strict=True))
"""gemmi's names of these polymers."""
_END_ATOMS: Final = frozenset(("OXT", "OP3"))
_TRIPLE: Final = 3


def boltz_section(
    record: EntryRecord, components: ComponentTable, rules: BoltzRules | None = None
) -> RulesetSection:
    """The first assembly as Boltz prepares it.

    Raises:
        EntryRefused: Boltz fails on it; the message has the reason.
    """
    return _Preparation(record, components, rules or BoltzRules()).section()


class _Preparation:
    def __init__(self, record: EntryRecord, components: ComponentTable, rules: BoltzRules) -> None:
        self.record = record
        self.components = components
        self.rules = rules
        self.dropped: list[Dropped] = []
        self.residues = _first_residues(record)
        self.covalent = self._covalent_residues()

    def section(self) -> RulesetSection:
        unit = {chain: made for chain in self._ordered() if (made := self._chain(chain))}
        placed_chains = list(self._copies(unit))
        if not placed_chains:
            raise EntryRefused("no chain is left", item=self.record.entry)
        chains = [unit[chain] for chain, _operator, _number in placed_chains]
        residues = [residue for chain in chains for residue in chain.residues]
        counts = offsets(np.array([len(one.rows) for one in residues]))
        sizes = offsets(np.array([len(chain.residues) for chain in chains]))
        rows = np.array([row for one in residues for row in one.rows], np.int64)
        bonds = [
            (start + one, start + two, kind)
            for start, residue in zip(counts[:-1].tolist(), residues, strict=True)
            for one, two, kind in residue.bonds
        ]
        operator = np.array([operator for _c, operator, _n in placed_chains])
        links = self._links(placed_chains, unit, counts[sizes], operator)
        chain_of = np.repeat(np.arange(len(chains)), np.diff(counts[sizes]))
        position = placed(
            self.record.atom_position[rows], operator[chain_of], self.record.operators, single=False
        )
        position[rows < 0] = np.nan
        kinds = np.array([chain.kind for chain in chains])
        table = Assembly(chains, kinds, residues, counts, sizes, chain_of, position, links)
        near = contacts(position, chain_of, self.rules.interface_distance)
        sources = np.array([one.source for one in residues])
        insertion = np.where(sources >= 0, self.record.residue_insertion[sources], "")
        label = self.record.chain_label
        return RulesetSection(
            project="boltz",
            chain_name=np.array(
                [f"{label[row]}{number or ''}" for row, _o, number in placed_chains]
            ),
            chain_asym=np.array([chain.asym for chain in chains]),
            chain_operator=operator,
            chain_copy=np.array([max(number - 1, 0) for _c, _o, number in placed_chains]),
            chain_number=np.arange(len(chains)),
            chain_type=kinds,
            chain_valid=self._valid(table),
            chain_entity=np.array([chain.entity for chain in chains]),
            chain_residue=sizes,
            residue_name=np.array([one.name for one in residues]),
            residue_index=np.array([one.index for one in residues]),
            residue_insertion=insertion,
            residue_hetero=(sources >= 0) & self.record.residue_hetero[sources],
            residue_atom=counts,
            atom_name=np.concatenate([one.component.name[one.keep] for one in residues]),
            atom_element=np.concatenate([one.component.element[one.keep] for one in residues]),
            atom_charge=np.concatenate([one.component.charge[one.keep] for one in residues]),
            atom_row=rows,
            bond_atom=np.array([bond[:2] for bond in [*bonds, *links]], np.int64).reshape(-1, 2),
            bond_type=np.array([bond[2] for bond in bonds] + [0] * len(links), np.int64),
            interface=np.unique(chain_of[near], axis=0).reshape(-1, 2),
            dropped=tuple(self.dropped),
        )

    def _ordered(self) -> list[int]:
        """Chains as gemmi lists them: those of one author's chain together."""
        authors = self.record.chain_author
        return sorted(range(len(authors)), key=lambda row: authors.index(authors[row]))

    def _copies(self, unit: dict[int, Chain]) -> Iterator[tuple[int, int, int]]:
        """Chain, operator and number of every chain of the assembly, in gemmi's order."""
        if not self.record.copies:
            if self.record.oligomeric_count:
                raise EntryRefused("an assembly of no chains", item=self.record.entry)
            yield from ((chain, -1, 0) for chain in unit)
            return
        label = {name: row for row, name in enumerate(self.record.chain_label)}
        numbers: dict[int, int] = defaultdict(int)
        for copies in self.record.copies:
            wanted = [label[name] for name in copies.asyms if name in label]
            groups: dict[str, list[int]] = {}
            for chain in wanted:
                groups.setdefault(self.record.chain_author[chain], []).append(chain)
            for operator in copies.operators:
                for chain in itertools.chain(*groups.values()):
                    if chain in unit:
                        numbers[chain] += 1
                        yield chain, operator, numbers[chain]

    def _chain(self, chain: int) -> Chain | None:
        record = self.record
        number = int(record.chain_entity[chain])
        if number < 0:
            return None
        entity = record.entities[number]
        if not self.residues[slice(*record.chain_residue[chain : chain + 2])].any():
            return None
        if entity.kind == "polymer":
            if entity.polymer not in _POLYMERS:
                self._drop(chain, f"a polymer that Boltz does not read: {entity.polymer}")
                return None
            residues = self._polymer(chain, entity)
            kind = _POLYMERS[entity.polymer]
        elif entity.kind in ("non-polymer", "branched"):
            residues = self._ligand(chain, branched=entity.kind == "branched")
            kind = LIGAND
        else:
            return None
        return Chain(chain, kind, number, residues) if residues else None

    def _drop(self, chain: int, reason: str) -> None:
        first = self.record.chain_residue[chain]
        self.dropped.append(
            Dropped(
                what="chain",
                chain=self.record.chain_label[chain],
                component=str(self.record.residue_name[first]),
                reason=reason,
            )
        )

    def _polymer(self, chain: int, entity: Entity) -> list[Residue]:
        record = self.record
        made = []
        sources = self._sources(chain, entity)
        for index, (monomer, source) in enumerate(zip(entity.monomers, sources, strict=True)):
            atoms = self._atoms(source)
            name = "MET" if monomer == "MSE" else monomer
            if monomer == "MSE" and "SE" in atoms:
                atoms["SD"] = atoms["SE"]
            if name not in self.components:
                if self.rules.components_required:
                    raise EntryRefused(f"component {name} is unknown", item=record.entry)
                self._drop(chain, f"component {name} is unknown")
                return []
            component = self.components[name]
            if name in STANDARD:
                made.append(self._standard(component, index, source, atoms))
            else:
                made.append(_by_component(component, index, source, atoms, covalent=True))
        return made

    def _sources(self, chain: int, entity: Entity) -> list[int]:
        """Residue of every monomer of a chain's sequence; -1 for one that nobody saw."""
        record = self.record
        rows = np.arange(*record.chain_residue[chain : chain + 2])
        rows = rows[self.residues[rows]]
        monomers = np.array(entity.monomers)
        if self.rules.residues_by_alignment:
            kind = _ALIGNED[entity.polymer]
            found = aligned_residues(record, rows.tolist(), monomers.tolist(), kind, self._atoms)
            return [int(row) for row in found]
        index = record.residue_seq[rows] - 1
        inside = (index >= 0) & (index < len(monomers))
        rows, index = rows[inside], index[inside]
        # Another monomer of the same number goes: the sequence has the first.
        same = record.residue_name[rows] == monomers[index]
        sources = np.full(len(monomers), -1)
        sources[index[same][::-1]] = rows[same][::-1]
        return [int(row) for row in sources]

    def _ligand(self, chain: int, *, branched: bool) -> list[Residue]:
        record = self.record
        low, high = record.chain_residue[chain : chain + 2]
        rows = [row for row in range(low, high) if self.residues[row]]
        names = [str(record.residue_name[row]) for row in rows]
        for name in names:
            if name in WATERS:
                return []
            if name not in self.components or not self.components[name].heavy.any():
                self._drop(chain, f"component {name} is unknown")
                return []
        covalent = branched or bool(self.covalent & set(rows))
        return [
            _by_component(self.components[name], index, row, self._atoms(row), covalent=covalent)
            for index, (name, row) in enumerate(zip(names, rows, strict=True))
        ]

    def _atoms(self, residue: int) -> dict[str, int]:
        """Rows of a residue's atoms by name: of alternate locations the first of each name."""
        found: dict[str, int] = {}
        if residue >= 0:
            record = self.record
            low, high = record.residue_atom[residue : residue + 2]
            for row in range(low, high):
                if record.atom_element[row] not in HYDROGENS:
                    found.setdefault(str(record.atom_name[row]), row)
        return found

    def _standard(
        self, component: Component, index: int, source: int, atoms: dict[str, int]
    ) -> Residue:
        out = _END_ATOMS | ({"CG"} if component.code == "UNK" else set())
        keep = component.heavy & ~np.isin(component.name, sorted(out))
        upper = {name.upper(): row for name, row in atoms.items()}
        names = component.name[keep].tolist()
        rows = [upper.get(name, -1) for name in names]
        if component.code == "ARG":
            one, two, base = (names.index(name) for name in ("NH1", "NH2", "CD"))
            if min(rows[one], rows[two], rows[base]) >= 0:
                position = self.record.atom_position
                near = [
                    float(np.linalg.norm(position[rows[end]] - position[rows[base]]))
                    for end in (one, two)
                ]
                if near[0] > near[1]:
                    rows[one], rows[two] = rows[two], rows[one]
        return Residue(index, source, component, keep, rows)

    def _covalent_residues(self) -> set[int]:
        numbered = self._numbered()
        ends = (end for link in self.record.links if self._is_covalent(link) for end in link.ends)
        return {row for end in ends if (row := numbered.get(end.author, end.residue)) >= 0}

    def _is_covalent(self, link: Link) -> bool:
        """Whether a link is covalent; an assembly has those that gemmi finds in a copy."""
        copies = self.record.copies
        if link.kind != "covale" or not copies:
            return link.kind == "covale"
        asyms = {end.asym for end in link.ends}
        return all(
            self._is_there(end) and end.symmetry in ("", "1_555") for end in link.ends
        ) and any(asyms <= set(one.asyms) for one in copies)

    def _links(
        self,
        chains: list[tuple[int, int, int]],
        unit: dict[int, Chain],
        starts: Integer[np.ndarray, " C1"],
        operator: Integer[np.ndarray, " C"],
    ) -> list[tuple[int, int, int]]:
        """Atoms of every covalent link, of all copies whose ends one operator places."""
        record = self.record
        chain_of = record.residue_chain()
        numbered = self._numbered()
        where: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (chain, which, _number) in enumerate(chains):
            where[chain, which].append(row)
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
                residue = numbered.get(end.author, end.residue)
                chain = int(chain_of[residue]) if residue >= 0 else -1
                place = _atom_place(unit.get(chain), residue, end.atom)
                if place is not None:
                    ends.append((chain, place))
                elif self.rules.links_required:
                    text = f"{end.asym} {end.component} {end.atom}"
                    reason = f"a covalent link to {text}, which Boltz does not have"
                    raise EntryRefused(reason, item=record.entry)
                else:
                    self._drop_link(end, "the component has no such atom")
            if len(ends) < 2 or any(end.symmetry not in ("", "1_555") for end in link.ends):
                continue
            (one, first), (two, second) = ends
            for which in dict.fromkeys(operator.tolist()):
                for a, b in zip(where[one, which], where[two, which], strict=False):
                    found.append((int(starts[a]) + first, int(starts[b]) + second, 0))
        return found

    def _is_there(self, end: LinkEnd) -> bool:
        """Whether the first conformation has the atom: gemmi copies no other link."""
        row = end.residue
        return row >= 0 and bool(self.residues[row]) and end.atom in self._atoms(row)

    def _drop_link(self, end: LinkEnd, reason: str) -> None:
        name = f"{end.component}.{end.atom}"
        self.dropped.append(Dropped(what="link", chain=end.asym, component=name, reason=reason))

    def _numbered(self) -> dict[tuple[str, str, str], int]:
        """Residues by the author's chain, number and insertion code, where links are found so."""
        record = self.record
        if record.copies or not self.rules.links_by_number:
            return {}
        authors = np.array(record.chain_author)[record.residue_chain()]
        rows = np.flatnonzero(self.residues)
        return {
            (authors[row], str(record.residue_author[row]), record.residue_insertion[row]): row
            for row in rows.tolist()
        }

    def _valid(self, table: Assembly) -> Bool[np.ndarray, " C"]:
        """Which chains no filter refuses; each filter sees all of them."""
        valid = np.ones(len(table.chains), bool)
        clashing = table.clashing(self.rules)
        for row, chain in enumerate(table.chains):
            reason = (
                "clashes with another chain" if row in clashing else table.refusal(row, self.rules)
            )
            if reason:
                valid[row] = False
                self._drop(chain.asym, reason)
        return valid


def _first_residues(record: EntryRecord) -> Bool[np.ndarray, " R"]:
    """Residues that are the first of their number in the author's chain."""
    seen: set[tuple[str, int, str]] = set()
    first = np.zeros(record.num_residues, bool)
    authors = np.array(record.chain_author)[record.residue_chain()].tolist()
    numbers, letters = record.residue_author.tolist(), record.residue_insertion.tolist()
    water = np.isin(record.residue_name, WATERS)
    for row, key in enumerate(zip(authors, numbers, letters, strict=True)):
        if not water[row] and key not in seen:
            seen.add(key)
            first[row] = True
    return first


def _by_component(
    component: Component, index: int, source: int, atoms: dict[str, int], *, covalent: bool
) -> Residue:
    """A residue with the atoms of its component, without leaving atoms that a bond displaced."""
    keep = component.heavy.copy()
    names = component.name.tolist()
    if keep.sum() == 1:
        (only,) = np.flatnonzero(keep).tolist()
        where = {names[only]: next(iter(atoms.values()))} if atoms else {}
    else:
        where = atoms
        if covalent:
            keep &= ~component.leaving | np.isin(component.name, list(atoms))
    place = np.cumsum(keep) - 1
    both = keep[component.bond].all(1) if len(component.bond) else np.zeros(0, bool)
    bonds = np.sort(place[component.bond[both]], axis=1).tolist()
    order = component.bond_order[both]
    kinds = np.where(order <= _TRIPLE, order, 0).tolist()
    rows = [where.get(name, -1) for name in component.name[keep].tolist()]
    pairs = [(one, two, kind) for (one, two), kind in zip(bonds, kinds, strict=True)]
    return Residue(index, source, component, keep, rows, pairs)


def _atom_place(chain: Chain | None, residue: int, name: str) -> int | None:
    """Place of an atom in its chain; None if the chain does not have it."""
    start = 0
    for one in chain.residues if chain else ():
        if one.source == residue:
            return start + one.names.index(name) if name in one.names else None
        start += len(one.rows)
    return None


__all__ = ["BoltzRules", "boltz_section"]

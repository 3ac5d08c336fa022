"""One entry as its file says it: every chain, residue, atom, link and operator, nothing chosen.

The record knows no project. Sequences name the residues that nobody saw, alternate locations
stand beside each other, waters and hydrogens are rows like others; a ruleset says what of it a
project takes. `without_solvent` is what a dataset keeps.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, Shaped


class ChainType(enum.IntEnum):
    """What a chain is, as sections and views number it."""

    PROTEIN = 0
    DNA = 1
    RNA = 2
    LIGAND = 3


PROTEIN, DNA, RNA, LIGAND = ChainType
POLYMERS: Final = {
    "polypeptide(L)": PROTEIN,
    "polydeoxyribonucleotide": DNA,
    "polyribonucleotide": RNA,
}
"""By `_entity_poly.type`, the polymers that projects have alignments or features for."""
HYDROGENS: Final = ("H", "D")
"""Elements that no project trains on."""
WATERS: Final = ("HOH", "DOD")
"""Components that no project trains on."""
ALTLOC_NONE: Final = 0
"""`atom_altloc` of an atom with a single location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """What a chain is made of, from the tables of entities."""

    name: str
    """`_entity.id`."""
    kind: str
    """`_entity.type` in lower case: polymer, non-polymer, branched, water."""
    polymer: str
    """`_entity_poly.type`; empty for what is no polymer."""
    monomers: tuple[str, ...]
    """Component of every residue of the polymer, the first of several at one number."""
    rivals: tuple[tuple[int, str], ...]
    """Further monomers of a number: (index from 0, component)."""
    sequence: str
    """`pdbx_seq_one_letter_code_can` without line ends; empty for what is no polymer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One end of a link, as the file writes it and where it was found."""

    asym: str
    seq: str
    component: str
    atom: str
    altloc: str
    author: tuple[str, str, str]
    """Author's chain, residue number and insertion code."""
    symmetry: str
    residue: int
    """Row in the table of residues; -1 if the file has no such residue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A row of `_struct_conn`."""

    kind: str
    """`conn_type_id`: covale, disulf, metalc, hydrog, ..."""
    ends: tuple[LinkEnd, ...]
    length: float
    """Ångström; NaN if not given."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was left out, with the reason."""

    what: str
    """`chain`, `residue`, `atom`, `link`."""
    chain: str
    component: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyCopies:
    """A row of `_pdbx_struct_assembly_gen`: which chains, placed by which operators."""

    asyms: tuple[str, ...]
    operators: tuple[int, ...]
    """Rows of `EntryRecord.operators`, in the order of the expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """An entry and one of its assemblies. C chains, R residues with atoms, A atoms, K operators.

    Chains, residues and atoms are those of the asymmetric unit, the first model, in the order of
    the file; a residue is a run of atoms with one name and number, so monomers that share a number
    are residues of their own. Offsets have one element more than rows.
    """

    entry: str
    """`_entry.id` in lower case."""
    assembly: str
    """`_pdbx_struct_assembly.id`; empty if the file names none."""
    deposit_date: str
    """`recvd_initial_deposition_date`; empty if not given, like all dates."""
    release_dates: tuple[str, ...]
    """Every `revision_date`, in the order of the file: projects read first, earliest or last."""
    resolutions: tuple[tuple[str, str], ...]
    """(item, text) of every item that gives a resolution, in the projects' order."""
    methods: tuple[str, ...]
    """`_exptl.method` in upper case, in the order of the file."""
    oligomeric_count: str
    """`oligomeric_count` of the assembly, as text; empty if the file has no table of them."""
    entities: tuple[Entity, ...]
    copies: tuple[AssemblyCopies, ...]
    """How chains make the assembly; empty if the file has no table of assemblies."""
    operators: Float[np.ndarray, "K 3 4"]
    """Rotation and translation, float64, ångström."""
    component_types: dict[str, str]
    """`_chem_comp.type` of every component the file defines, in upper case."""

    chain_label: tuple[str, ...]
    """`label_asym_id`."""
    chain_author: tuple[str, ...]
    """`auth_asym_id` of its first atom."""
    chain_entity: Integer[np.ndarray, " C"]
    chain_residue: Integer[np.ndarray, " C+1"]

    residue_name: Shaped[np.ndarray, " R"]
    """Text: `label_comp_id`."""
    residue_seq: Integer[np.ndarray, " R"]
    """`label_seq_id`; 0 if not given."""
    residue_author: Integer[np.ndarray, " R"]
    """`auth_seq_id`."""
    residue_insertion: Shaped[np.ndarray, " R"]
    """Text: insertion code, empty if none."""
    residue_hetero: Bool[np.ndarray, " R"]
    """Whether its first atom is HETATM."""
    residue_atom: Integer[np.ndarray, " R+1"]

    atom_name: Shaped[np.ndarray, " A"]
    """Text: `label_atom_id`."""
    atom_element: Shaped[np.ndarray, " A"]
    """Text: `type_symbol`, upper case."""
    atom_charge: Integer[np.ndarray, " A"]
    """`pdbx_formal_charge`; 0 if not given."""
    atom_altloc: Integer[np.ndarray, " A"]
    """Code of the character of `label_alt_id`; `ALTLOC_NONE` if not given."""
    atom_occupancy: Float[np.ndarray, " A"]
    atom_b_factor: Float[np.ndarray, " A"]
    """Å²; NaN if not given."""
    atom_position: Float[np.ndarray, "A 3"]
    """Ångström, float64: the decimals of the file."""

    links: tuple[Link, ...]
    dropped: tuple[Dropped, ...]
    """What the reader itself left out: further models, atoms without a chain."""

    @property
    def num_chains(self) -> int:
        """Chains of the asymmetric unit (C)."""
        return len(self.chain_label)

    @property
    def num_residues(self) -> int:
        """Residues with atoms (R)."""
        return len(self.residue_name)

    @property
    def num_atoms(self) -> int:
        """Atoms, every alternate location counted (A)."""
        return len(self.atom_name)

    def residue_chain(self) -> Integer[np.ndarray, " R"]:
        """Chain of every residue."""
        return np.repeat(np.arange(self.num_chains), np.diff(self.chain_residue))

    def atom_residue(self) -> Integer[np.ndarray, " A"]:
        """Residue of every atom."""
        return np.repeat(np.arange(self.num_residues), np.diff(self.residue_atom))

    def resolution(self) -> float:
        """The first resolution that is a number, ångström; NaN without one."""
        for _item, text in self.resolutions:
            try:
                return float(text)
            except ValueError:
                continue
        return float("nan")

    def taking(self, rows: Bool[np.ndarray, " A"]) -> EntryRecord:
        """The record with these atoms alone; residues and chains without an atom are gone."""
        counts = np.add.reduceat(np.append(rows, False), self.residue_atom[:-1])
        counts = np.where(np.diff(self.residue_atom) > 0, counts, 0)
        keep = counts > 0
        held = np.add.reduceat(np.append(keep, False), self.chain_residue[:-1])
        moved = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)
        chains = np.flatnonzero(held)
        links = []
        for link in self.links:
            ends = [dataclasses.replace(end, residue=int(moved[end.residue])) for end in link.ends]
            links.append(dataclasses.replace(link, ends=tuple(ends)))
        return dataclasses.replace(
            self,
            chain_label=tuple(self.chain_label[chain] for chain in chains),
            chain_author=tuple(self.chain_author[chain] for chain in chains),
            chain_entity=self.chain_entity[chains],
            chain_residue=offsets(held[chains]),
            **self._rows("residue_", keep) | {"residue_atom": offsets(counts[keep])},
            **self._rows("atom_", rows),
            links=tuple(links),
        )

    def _rows(self, table: str, rows: Bool[np.ndarray, " n"]) -> dict[str, Any]:
        """These rows of the columns whose names begin so."""
        columns = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {
            name: column[rows]
            for name, column in columns.items()
            if name.startswith(table) and len(column) == len(rows)
        }


def solvent_rows(record: EntryRecord) -> Bool[np.ndarray, " A"]:
    """Atoms of waters, and hydrogens: what no ruleset takes."""
    water = np.isin(record.residue_name, WATERS)[record.atom_residue()]
    rows: np.ndarray = water | np.isin(record.atom_element, HYDROGENS)
    return rows


def offsets(counts: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n+1"]:
    """Where rows begin, from how many there are, int64."""
    starts: np.ndarray = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return starts


def run_starts(
    *columns: Shaped[np.ndarray, " n"], falling: Shaped[np.ndarray, " n"] | None = None
) -> Integer[np.ndarray, " s"]:
    """Where any column changes, or `falling` falls; the first row is a start."""
    change = np.zeros(len(columns[0]), bool)
    change[:1] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    if falling is not None:
        change[1:] |= np.diff(falling) < 0
    return np.flatnonzero(change)

"""One entry as in its file: every chain, residue, atom, link and operator.

The record is the same for all projects. Sequences include unresolved residues; alternate
locations, waters and hydrogens have rows like other atoms. A ruleset selects the part that a
project uses; `solvent_rows` are left out of datasets.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, Shaped


class ChainType(enum.IntEnum):
    """Type of a chain, numbered as in sections and views."""

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
"""Chain type by `_entity_poly.type`, of polymers that projects have alignments or features for."""
HYDROGENS: Final = ("H", "D")
"""Elements that no project trains on."""
WATERS: Final = ("HOH", "DOD")
"""Components that no project trains on."""
ALTLOC_NONE: Final = 0
"""`atom_altloc` of an atom with a single location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """Sequence or component of chains, from the tables of entities."""

    name: str
    """`_entity.id`."""
    kind: str
    """`_entity.type` in lower case: polymer, non-polymer, branched, water."""
    polymer: str
    """`_entity_poly.type`; empty if it is not a polymer."""
    monomers: tuple[str, ...]
    """Component of every residue of the polymer, the first of several at one number."""
    rivals: tuple[tuple[int, str], ...]
    """Further monomers of a number: (index from 0, component)."""
    sequence: str
    """`pdbx_seq_one_letter_code_can` without line ends; empty if it is not a polymer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One end of a link: its names in the file, and its residue."""

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
    """A part of the entry that was left out, with the reason."""

    what: str
    """`chain`, `residue`, `atom`, `link`."""
    chain: str
    component: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyCopies:
    """A row of `_pdbx_struct_assembly_gen`: chains, and operators that place them."""

    asyms: tuple[str, ...]
    operators: tuple[int, ...]
    """Rows of `EntryRecord.operators`, in the order of the expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """An entry and one of its assemblies. C chains, R residues with atoms, A atoms, K operators.

    Chains, residues and atoms are those of the asymmetric unit, the first model, in the order of
    the file; a residue is a run of atoms with one name and number, so monomers that share a number
    are separate residues. Offsets have one element more than rows.
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
    """Chains and operators of the assembly; empty if the file has no table of assemblies."""
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
    """True if its first atom is HETATM."""
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
    """Parts that the reader left out: further models, atoms without a chain."""

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
        """Atoms, alternate locations included (A)."""
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
        """The record with these atoms only, without residues and chains that have none."""
        atom_counts = np.add.reduceat(np.append(rows, False), self.residue_atom[:-1])
        atom_counts = np.where(np.diff(self.residue_atom) > 0, atom_counts, 0)
        residues = atom_counts > 0
        residue_counts = np.add.reduceat(np.append(residues, False), self.chain_residue[:-1])
        new_row = np.append(np.where(residues, np.cumsum(residues) - 1, -1), -1)
        chains = np.flatnonzero(residue_counts)
        links = []
        for link in self.links:
            ends = [dataclasses.replace(e, residue=int(new_row[e.residue])) for e in link.ends]
            links.append(dataclasses.replace(link, ends=tuple(ends)))
        return dataclasses.replace(
            self,
            chain_label=tuple(self.chain_label[chain] for chain in chains),
            chain_author=tuple(self.chain_author[chain] for chain in chains),
            chain_entity=self.chain_entity[chains],
            chain_residue=offsets(residue_counts[chains]),
            **self._rows("residue_", residues) | {"residue_atom": offsets(atom_counts[residues])},
            **self._rows("atom_", rows),
            links=tuple(links),
        )

    def _rows(self, table: str, rows: Bool[np.ndarray, " n"]) -> dict[str, Any]:
        """Selected rows of the columns whose names begin with `table`."""
        columns = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: column[rows]
            for name, column in columns.items()
            if name.startswith(table) and len(column) == len(rows)
        }


def solvent_rows(record: EntryRecord) -> Bool[np.ndarray, " A"]:
    """Mask of the atoms of waters and of hydrogens, which no ruleset uses."""
    water = np.isin(record.residue_name, WATERS)[record.atom_residue()]
    rows: np.ndarray = water | np.isin(record.atom_element, HYDROGENS)
    return rows


def offsets(counts: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n+1"]:
    """Start of each row's run and the end of the last, from their lengths, int64."""
    starts: np.ndarray = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return starts


def run_starts(
    *columns: Shaped[np.ndarray, " n"], falling: Shaped[np.ndarray, " n"] | None = None
) -> Integer[np.ndarray, " s"]:
    """Rows at which any column changes or `falling` decreases, and the first row."""
    change = np.zeros(len(columns[0]), bool)
    change[:1] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    if falling is not None:
        change[1:] |= np.diff(falling) < 0
    return np.flatnonzero(change)

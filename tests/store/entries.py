"""Small valid entries, sections, alignments and molecules, for tests of the store."""

from __future__ import annotations

import numpy as np

from evofeed.protein.alignment import Alignment
from evofeed.protein.entry_record import (
    AssemblyCopies,
    Dropped,
    Entity,
    EntryRecord,
    Link,
    LinkEnd,
)
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection

NAMES = ["N", "CA", "C", "O", "CB", "CG", "CD1", "CD2"]


def made_record(seed: int, *, residues: int = 12, atoms: int = 5) -> EntryRecord:
    """Two chains of alanines and one ligand of three atoms; every kind of column in use."""
    rng = np.random.default_rng(seed)
    counts = np.append(np.full(residues, atoms), 3)
    total = int(counts.sum())
    starts = np.append(0, np.cumsum(counts))
    centre = np.cumsum(rng.normal(0, 2, [residues + 1, 3]), axis=0)
    position = np.repeat(centre, counts, axis=0) + rng.normal(0, 1.5, [total, 3])
    end = LinkEnd(
        asym="A", seq="1", component="ALA", atom="CB", altloc="", author=("A", "1", ""),
        symmetry="1_555", residue=0,
    )  # fmt: skip
    names = (NAMES * total)[:atoms]
    return EntryRecord(
        entry="made",
        assembly="1",
        deposit_date="2020-01-01",
        release_dates=("2020-02-01", "2021-01-01"),
        resolutions=(("_refine.ls_d_res_high", "2.10"),),
        methods=("X-RAY DIFFRACTION",),
        oligomeric_count="2",
        entities=(
            Entity(
                name="1", kind="polymer", polymer="polypeptide(L)", monomers=("ALA",) * residues,
                rivals=((0, "SER"),), sequence="A" * residues,
            ),
            Entity(name="2", kind="non-polymer", polymer="", monomers=(), rivals=(), sequence=""),
        ),
        copies=(AssemblyCopies(asyms=("A", "B", "C"), operators=(0,)),),
        operators=np.eye(3, 4)[None],
        component_types={"ALA": "L-PEPTIDE LINKING", "LIG": "NON-POLYMER"},
        chain_label=("A", "B", "C"),
        chain_author=("A", "B", "A"),
        chain_entity=np.array([0, 0, 1]),
        chain_residue=np.array([0, residues // 2, residues, residues + 1]),
        residue_name=np.array(["ALA"] * residues + ["LIG"]),
        residue_seq=np.append(np.arange(1, residues + 1), 0).astype(np.int32),
        residue_author=np.append(np.arange(1, residues + 1), 301).astype(np.int32),
        residue_insertion=np.array([""] * residues + ["A"]),
        residue_hetero=np.array([False] * residues + [True]),
        residue_atom=starts,
        atom_name=np.array(names * residues + ["C1", "O1", "H1''x"]),
        atom_element=np.array([n[0] for n in names] * residues + ["C", "O", "H"]),
        atom_charge=np.append(np.zeros(total - 1, np.int32), -1).astype(np.int32),
        atom_altloc=np.where(np.arange(total) == 2, ord("A"), 0).astype(np.int32),
        atom_occupancy=np.where(np.arange(total) == 2, 0.5, 1.0),
        atom_b_factor=np.round(rng.uniform(5, 80, total), 2),
        atom_position=np.round(position, 3),
        links=(Link(kind="covale", ends=(end, end), length=1.5),),
        dropped=(Dropped(what="model", chain="", component="", reason="a further model"),),
    )  # fmt: skip


def made_section(record: EntryRecord, project: str = "openfold3") -> RulesetSection:
    """All of it but the ligand's hydrogen."""
    rows = np.flatnonzero(record.atom_element != "H")
    counts = np.bincount(record.atom_residue()[rows], minlength=record.num_residues)
    bonds = np.stack([np.arange(4), np.arange(1, 5)], 1).astype(np.int32)
    return RulesetSection(
        project=project,
        chain_name=np.array(["1", "2", "3"]),
        chain_asym=np.arange(3, dtype=np.int32),
        chain_operator=np.zeros(3, np.int32),
        chain_copy=np.zeros(3, np.int32),
        chain_number=np.arange(3, dtype=np.int32),
        chain_type=np.array([0, 0, 3], np.uint8),
        chain_valid=np.ones(3, bool),
        chain_entity=np.array([1, 1, 2], np.int32),
        chain_residue=record.chain_residue.astype(np.int32),
        residue_name=record.residue_name,
        residue_index=np.maximum(record.residue_seq, 1),
        residue_insertion=record.residue_insertion,
        residue_hetero=record.residue_hetero,
        residue_atom=np.append(0, np.cumsum(counts)).astype(np.int32),
        atom_name=record.atom_name[rows],
        atom_element=record.atom_element[rows],
        atom_charge=record.atom_charge[rows].astype(np.int8),
        atom_row=rows.astype(np.int32),
        bond_atom=bonds,
        bond_type=np.ones(4, np.int8),
        interface=np.array([[0, 1], [1, 2]], np.int32),
        dropped=(Dropped(what="atom", chain="3", component="LIG", reason="a hydrogen"),),
    )


def made_alignment(name: str, columns: int = 12) -> Alignment:
    """Forty rows, ten of them repeated, of two sources, with species and deletions."""
    rng = np.random.default_rng(5)
    letters = rng.integers(0, 27, [30, columns]).astype(np.uint8)
    letters[0, 0], letters[1, 0] = 0, 26
    rows = np.append(np.arange(30), np.arange(10)).astype(np.int32)
    counts = rng.integers(0, 3, 40)
    return Alignment(
        name=name,
        sources=("mgnify_hits", "uniprot_hits"),
        letters=letters,
        row_letters=rows,
        row_source=(np.arange(40) >= 30).astype(np.int32),
        row_species=rng.integers(-1, 2, 40).astype(np.int32),
        row_gapless=rows.astype(np.int64),
        species=("HUMAN", "MOUSE"),
        deletion_start=np.append(0, np.cumsum(counts)).astype(np.int64),
        deletion_column=np.concatenate([np.arange(n) for n in counts]).astype(np.int32),
        deletion_count=rng.integers(1, 300, counts.sum()).astype(np.int32),
    )


def made_molecule(atoms: int, conformers: int) -> Molecule:
    """A chain of carbons that may be turned around."""
    rng = np.random.default_rng(atoms)
    order = np.arange(atoms)
    return Molecule(
        name=np.array([f"C{i}" for i in range(atoms)]),
        element=np.full(atoms, 6),
        charge=np.zeros(atoms, np.int64),
        position=rng.normal(0, 1, [conformers, atoms, 3]).astype(np.float32),
        mask=np.ones(atoms, bool),
        bond=np.stack([order[:-1], order[1:]], 1),
        orders=np.stack([order, order[::-1]]),
    )

"""Small synthetic entries and alignments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.protein.alignment import Alignment, Templates
from evofeed.protein.residues import GAP, RESTYPES


class MadeChain(NamedTuple):
    """A chain: its entity, its type, and its residues, each a name and a number of atoms."""

    name: str
    entity: int
    kind: ChainType
    residues: tuple[tuple[str, int], ...]
    alignment: int = -1


def made_entry(
    chains: list[MadeChain],
    bonds: list[tuple[int, int]] | None = None,
    alignments: tuple[str, ...] = (),
    seed: int = 0,
) -> EntryView:
    """An entry with ligands split into atoms and random coordinates."""
    rng = np.random.default_rng(seed)
    counts = [len(chain.residues) for chain in chains]
    residues = [residue for chain in chains for residue in chain.residues]
    ligand = np.repeat([chain.kind is ChainType.LIGAND for chain in chains], counts)
    sizes = np.array([size for _, size in residues])
    starts = np.append(0, np.cumsum(sizes)).astype(np.int32)
    total = int(starts[-1])
    starts_token = np.repeat(ligand, sizes)
    starts_token[starts[:-1]] = True
    first = np.flatnonzero(starts_token).astype(np.int32)
    token_residue = np.searchsorted(starts, first, side="right").astype(np.int32) - 1
    entities = np.array([chain.entity for chain in chains], np.int32)
    titles = sorted(set(residues))
    molecule = np.array([titles.index(residue) for residue in residues], np.int32)
    molecule_atom = np.append(0, np.cumsum([size for _, size in titles])).astype(np.int32)
    pairs = zip(molecule, sizes, strict=True)
    reference = [molecule_atom[m] + np.arange(size) for m, size in pairs]
    kinds = np.array([chain.kind for chain in chains], np.uint8)
    types = rng.integers(0, 20, len(residues)).astype(np.uint8)
    return EntryView(
        entry="made",
        resolution=2.0,
        chain_name=np.array([chain.name for chain in chains]),
        chain_type=kinds,
        chain_entity=entities,
        chain_sym=np.array([np.sum(entities[:i] == e) for i, e in enumerate(entities)], np.int32),
        chain_valid=np.ones(len(chains), bool),
        chain_residue=np.append(0, np.cumsum(counts)).astype(np.int32),
        chain_alignment=np.array([chain.alignment for chain in chains], np.int32),
        alignments=alignments,
        residue_name=np.array([name for name, _ in residues]),
        residue_index=np.concatenate([np.arange(1, n + 1) for n in counts]).astype(np.int32),
        residue_type=types,
        residue_present=np.ones(len(residues), bool),
        residue_component=np.arange(len(residues), dtype=np.int32),
        residue_atom=starts,
        atom_name=np.zeros([total, 4], np.uint8),
        atom_element=np.full(total, 6, np.uint8),
        atom_charge=np.zeros(total, np.int8),
        atom_position=rng.normal(0, 20, [total, 3]).astype(np.float32),
        atom_present=np.ones(total, bool),
        atom_reference=np.concatenate(reference).astype(np.int32),
        token_atom=first,
        token_atoms=np.diff(np.append(first, total)).astype(np.int32),
        token_residue=token_residue,
        token_type=types[token_residue],
        token_centre=first,
        token_distogram=np.full(len(first), -1, np.int32),
        token_atomized=ligand[token_residue],
        token_resolved=np.ones(len(first), bool),
        bond_atom=np.array(bonds or [], np.int32).reshape(-1, 2),
        bond_type=np.ones(len(bonds or []), np.uint8),
        interface_chain=np.zeros([0, 2], np.int32),
        component_molecule=molecule,
        molecule_name=tuple(f"{name}{size}" for name, size in titles),
        molecule_atom=molecule_atom,
        molecule_bond=np.zeros([0, 2], np.int32),
        molecule_position=rng.normal(0, 1, [1, int(molecule_atom[-1]), 3]).astype(np.float32),
        molecule_mask=np.ones(int(molecule_atom[-1]), bool),
        molecule_orders=tuple(np.arange(size)[None] for _, size in titles),
    )


def made_alignment(
    name: str, species: list[str], columns: int = 6, seed: int = 0, source: str = "uniprot_hits"
) -> Alignment:
    """A query and one row for every species ("" for none): distinct rows of random letters."""
    rng = np.random.default_rng(seed)
    rows = len(species) + 1
    letters = rng.integers(0, 20, [rows, columns]).astype(np.uint8)
    letters[:, 0] = np.arange(rows) % 20
    letters[:, 1] = np.arange(rows) // 20 % 20
    letters[:, 2] = np.arange(rows) // 400
    names = sorted(set(species) - {""})
    return Alignment(
        name=name,
        sources=(source,),
        letters=letters,
        row_letters=np.arange(rows, dtype=np.int32),
        row_source=np.zeros(rows, np.int32),
        row_species=np.array([-1, *(names.index(s) if s else -1 for s in species)], np.int32),
        row_gapless=np.arange(rows),
        species=tuple(names),
        deletion_start=np.zeros(rows + 1, np.int64),
        deletion_column=np.zeros(0, np.int32),
        deletion_count=np.zeros(0, np.int32),
    )


def made_templates(length: int, seed: int = 0) -> Templates:
    """Three templates of a query of `length` columns, with missing atoms and residues."""
    rng = np.random.default_rng(seed)
    restype = rng.integers(0, 21, (3, length)).astype(np.uint8)
    position = rng.normal(size=(3, length, 4, 3), scale=15).astype(np.float32)
    position[rng.random(position.shape[:3]) < 0.1] = np.nan
    glycine = restype == RESTYPES.index("G")
    position[glycine, 3] = position[glycine, 1]
    restype[rng.random(restype.shape) < 0.2] = GAP
    restype[2, 20:] = GAP  # reaches into few crops
    return Templates(name=("a", "b", "c"), date=("",) * 3, restype=restype, position=position)

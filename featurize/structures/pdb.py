"""Legacy PDB text -> `Structure`: the amino acids of each chain, or OpenFold's reading of it."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from evofeed.base.errors import MmcifError, NoProtein
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.atom_sites import PlacedRows, place_chain
from evofeed.featurize.structures.atom_table import AtomTable, Coded
from evofeed.featurize.structures.author_chains import FullSequence, author_chains, residues_of
from evofeed.featurize.structures.other_molecules import other_molecules
from evofeed.featurize.structures.pdb_text import read_pdb_header, read_pdb_table
from evofeed.featurize.structures.residue_names import is_amino_acid, standard_letter
from evofeed.featurize.structures.structure import Chain, Structure

_FREE_IDS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def parse_pdb(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The protein chains of a legacy PDB file's first model; see `parse_structure`."""
    config = config or FeaturizeConfig()
    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not a PDB text file", path=path)
    table = read_pdb_table(data, path, config.caps)
    threshold = config.confidence_threshold if is_distillation else None
    if config.strict_pdb:
        _check_strict(table, max(1, (b"\n" + data).count(b"\nMODEL ")), path)
    if config.all_pdb_residues:
        return _as_openfold(table, file_id, path, threshold)
    header = read_pdb_header(data)
    table, blank = _with_usable_ids(table, header.modified)
    sequences = {
        name: FullSequence(names, header.missing.get(name, ()))
        for name, names in header.seqres.items()
        if any(is_amino_acid(n) or n in header.modified for n in names)
    }
    sequences.pop(blank, None)
    if blank and "" in sequences:
        sequences[blank] = sequences.pop("")
    try:
        chains, residues_of_others = author_chains(table, sequences, config.caps, header.modified)
    except MmcifError as error:
        error.path = path or None
        raise
    others = [f"{name} ({residues})" for name, residues in residues_of_others.items()]
    if not chains:
        raise NoProtein(f"no protein in it, only chain {', '.join(others)}", path=path)

    def build_chain(name: str) -> Chain:
        chain = place_chain(table, chains[name], threshold)
        notes = list(chain.notes)
        if name == blank:
            notes.append(f"the file gives no chain id, {name!r} is the first free one")
        notes += [f"chain {', '.join(others)}: no proteins"] if others else []
        return dataclasses.replace(chain, notes=tuple(notes))

    return Structure(
        file_id=file_id,
        method=header.method,
        release_date=header.release_date,
        is_deposition=header.is_deposition,
        resolution=header.resolution,
        sequences={name: chain.sequence for name, chain in chains.items()},
        build_chain=build_chain,
        kind="pdb",
        left_out=tuple(f"chain {other}" for other in others),
        others=other_molecules(table, chains.values()),
    )


def _as_openfold(table: AtomTable, file_id: str, path: str, threshold: float | None) -> Structure:
    """As OpenFold's `from_pdb_string` by Biopython: the sequence is that of the observed residues.

    Meant for predictions. Every residue with one of the 37 atoms is part of the chain.
    """
    components = table.component
    # Other names, so that MSE's selenium and arginine's nitrogens are left unchanged.
    renamed = components._replace(names=[f"{name}'" for name in components.names])
    table = dataclasses.replace(table, component=renamed)
    atoms = np.flatnonzero(table.atom37 >= 0)
    if not len(atoms):
        raise MmcifError("no residue with a known atom in it", path=path)
    if table.absent[atoms].any():
        raise MmcifError("a coordinate is not a number", path=path)
    chains: dict[str, PlacedRows] = {}
    hetero = np.where(table.hetero, components.codes + 1, 0)
    for code in dict.fromkeys(table.chain.codes[atoms].tolist()):
        rows = atoms[table.chain.codes[atoms] == code]
        residues = residues_of(rows, table, hetero)
        last = np.zeros(len(residues.first_row), np.int64)
        last[residues.ordinal] = rows  # of equal indices numpy keeps the last
        letters = [standard_letter(components.names[c]) for c in components.codes[last]]
        name = table.chain.names[code]
        chains[name] = PlacedRows(name, "".join(letters), rows, residues.ordinal)
    return Structure(
        file_id=file_id,
        method="",
        release_date="",
        resolution=0.0,
        sequences={name: chain.sequence for name, chain in chains.items()},
        build_chain=lambda name: place_chain(table, chains[name], threshold),
        kind="pdb",
    )


def _with_usable_ids(table: AtomTable, modified: frozenset[str]) -> tuple[AtomTable, str]:
    """The table with chain ids of one character or two, and the letter that replaces a blank id.

    Column 21 is the first character of the id where the file has more chains than characters,
    and the fourth of a residue's name in simulations (`TIP3`): chains with amino acids have ids.
    """
    amino = table.component.where(lambda name: is_amino_acid(name) or name in modified)
    proteins = {table.chain.names[code] for code in np.unique(table.chain.codes[amino]).tolist()}
    names = [n if len(n) != 2 or n in proteins else n[1] for n in table.chain.names]
    free = ""
    if "" in names:
        free = next((letter for letter in _FREE_IDS if letter not in names), "")
        names = [name or free for name in names]
    chains = Coded.of(names)
    chains = Coded(chains.codes[table.chain.codes], chains.names)
    return dataclasses.replace(table, chain=chains, label=chains), free


def _check_strict(table: AtomTable, models: int, path: str) -> None:
    """Checks that OpenFold reads the file.

    Raises:
        MmcifError: several models, an insertion code, or a chain id other than A to Z.
    """
    if models > 1:
        raise MmcifError(f"{models} models, OpenFold takes one", path=path)
    inserted = np.flatnonzero(table.insertion.codes)
    if len(inserted):
        number = table.author_number[inserted[0]]
        raise MmcifError(f"insertion code at residue {number}, OpenFold takes none", path=path)
    for name in table.chain.names:
        if not (len(name) == 1 and "A" <= name <= "Z"):
            raise MmcifError(f"chain id {name!r}, OpenFold takes A-Z only", path=path)

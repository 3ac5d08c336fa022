"""Legacy PDB text -> `Structure`.

By default a chain is its amino acids, as `author_chains` says. What OpenFold makes of such a file
is in `pdb_reference`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from evofeed.base.errors import MmcifError, NoProtein
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.atom_sites import place_chain
from evofeed.featurize.structures.atom_table import AtomTable, Coded
from evofeed.featurize.structures.author_chains import FullSequence, author_chains
from evofeed.featurize.structures.left_out import other_molecules
from evofeed.featurize.structures.pdb_header import read_pdb_header
from evofeed.featurize.structures.pdb_reference import (
    count_models,
    parse_pdb_as_openfold,
    refuse_chain_id,
)
from evofeed.featurize.structures.pdb_table import read_pdb_table
from evofeed.featurize.structures.residue_names import is_amino_acid
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
    """The protein chains of a legacy PDB file's first model, as `parse_structure` says."""
    config = config or FeaturizeConfig()
    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not a PDB text file", path=path or None)
    if config.all_pdb_residues:
        return parse_pdb_as_openfold(
            data, file_id=file_id, path=path, config=config, is_distillation=is_distillation
        )
    table = read_pdb_table(data, path, config.caps)
    header = read_pdb_header(data)
    if config.strict_pdb:
        _refuse(table, count_models(data), path)
    table, blank = _with_usable_ids(table, header.modified)
    sequences = {
        name: FullSequence(names, header.unseen.get(name, ()))
        for name, names in header.seqres.items()
        if any(is_amino_acid(n) or n in header.modified for n in names)
    }
    sequences.pop(blank, None)
    if blank and "" in sequences:
        sequences[blank] = sequences.pop("")
    try:
        chains = author_chains(table, sequences, config.caps.max_columns, header.modified)
    except MmcifError as error:
        error.path = path or None
        raise
    others = [f"{name} ({residues})" for name, residues in chains.others.items()]
    if not chains.proteins:
        raise NoProtein(f"no protein in it, only chain {', '.join(others)}", path=path or None)
    threshold = config.confidence_threshold if is_distillation else None

    def place(name: str) -> Chain:
        chain = place_chain(table, chains.proteins[name], threshold)
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
        sequences={name: part.sequence for name, part in chains.proteins.items()},
        place=place,
        kind="pdb",
        left_out=tuple(f"chain {other}" for other in others),
        others=other_molecules(table, chains.proteins.values()),
    )


def _with_usable_ids(table: AtomTable, modified: frozenset[str]) -> tuple[AtomTable, str]:
    """Chain ids of one character or two, and the letter that a blank one became.

    Column 21 is the first of two where the file has more chains than characters, and the
    fourth of a residue's name in simulations (`TIP3`): only amino acids tell which.
    """
    amino = table.component.where(lambda name: is_amino_acid(name) or name in modified)
    both = {
        table.chain.names[code]
        for code in np.unique(table.chain.codes[amino]).tolist()
        if len(table.chain.names[code]) == 2
    }
    names = [n if len(n) != 2 or n in both else n[1] for n in table.chain.names]
    free = ""
    if "" in names:
        free = next((letter for letter in _FREE_IDS if letter not in names), "")
        names = [name or free for name in names]
    chains = Coded.of(names)
    chains = Coded(chains.codes[table.chain.codes], chains.names)
    return dataclasses.replace(table, chain=chains, label=chains), free


def _refuse(table: AtomTable, models: int, path: str) -> None:
    if models > 1:
        raise MmcifError(f"{models} models, OpenFold takes one", path=path or None)
    odd = np.flatnonzero(table.insertion.codes)
    if len(odd):
        number = table.author_number[odd[0]]
        raise MmcifError(f"insertion code at residue {number}, OpenFold takes none", path=path)
    for name in table.chain.names:
        refuse_chain_id(name, path)

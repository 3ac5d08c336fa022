"""Legacy PDB text as OpenFold's `from_pdb_string` reads it: what is seen is the sequence.

Meant for predictions. Every residue with one of the 37 atoms is one of the chain. A plain
file is read by column; Biopython, which OpenFold uses, reads all others and is the oracle.
"""

from __future__ import annotations

import io
import warnings
from typing import Any, Final

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.atom_sites import mask_unconfident, rounded
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.pdb_atoms import PdbAtoms, read_pdb_atoms
from evofeed.featurize.residue_names import standard_letter
from evofeed.featurize.structure import Chain, Structure
from evofeed.residues import ATOM37_NUM, ATOM_ORDER
from evofeed.shapes import Int

_BLANK: Final = 32
_WATERS: Final = ("HOH", "WAT")
"""Names that Biopython takes for water."""


def parse_pdb_as_openfold(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig,
    is_distillation: bool = False,
    by_column: bool = True,
) -> Structure:
    """As `parse_pdb`; `by_column`: read plain files without Biopython, with the same result."""
    chains = _plain_chains(data, path, config, is_distillation) if by_column else None
    if chains is None:
        chains = _chains_of_biopython(data, path, config, is_distillation)
    if not chains:
        raise MmcifError("no residue with a known atom in it", path=path or None)
    return Structure(
        file_id=file_id,
        method="",
        release_date="",
        resolution=0.0,
        sequences={name: chain.sequence for name, chain in chains.items()},
        place=chains.__getitem__,
        kind="pdb",
    )


def _chains_of_biopython(
    data: bytes, path: str, config: FeaturizeConfig, is_distillation: bool
) -> dict[str, Chain]:
    model, models = _first_model(data, path)
    if config.strict_pdb and models != 1:
        raise MmcifError(f"{models} models, OpenFold takes one", path=path or None)
    parts = (_chain(part, path, config, is_distillation) for part in model)
    return {chain.chain_id: chain for chain in parts if chain is not None}


def _first_model(data: bytes, path: str) -> tuple[Any, int]:
    from Bio.PDB.PDBParser import PDBParser

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parser: Any = PDBParser  # untyped
            text = io.StringIO(data.decode("utf-8", "replace"))
            structure = parser(QUIET=True).get_structure("", text)
            models = list(structure)
    except Exception as error:  # Biopython raises whatever int() and float() do
        raise MmcifError(f"not a PDB file: {error}", path=path or None) from None
    if not models:
        raise MmcifError("no ATOM record in it", path=path or None)
    return models[0], len(models)


def _chain(part: Any, path: str, config: FeaturizeConfig, is_distillation: bool) -> Chain | None:
    letters: list[str] = []
    positions, masks, confidences = [], [], []
    codes: dict[int, str] = {}
    for residue in part:
        code = residue.id[2]
        if config.strict_pdb and code != " ":
            raise MmcifError(
                f"insertion code at chain {part.id} residue {residue.id[1]}, OpenFold takes none",
                path=path or None,
            )
        xyz = np.zeros([ATOM37_NUM, 3])
        mask = np.zeros(ATOM37_NUM, np.uint8)
        confidence = np.zeros(ATOM37_NUM)
        for atom in residue:
            slot = ATOM_ORDER.get(atom.name)
            if slot is not None:
                xyz[slot], mask[slot], confidence[slot] = atom.coord, 1, atom.bfactor
        if not mask.any():
            continue
        if code != " ":
            codes[len(letters)] = code
        letters.append(standard_letter(residue.resname))
        positions.append(xyz)
        masks.append(mask)
        confidences.append(confidence.max())
    if not letters:
        return None
    if config.strict_pdb:
        refuse_chain_id(part.id, path)
    xyz = np.array(positions)
    if not np.all(np.abs(xyz) < 1e7):  # NaN fails too
        raise MmcifError("a coordinate is no number", path=path or None)
    mask = np.array(masks, np.uint8)
    notes: tuple[str, ...] = ()
    kept: tuple[float, ...] = ()
    if is_distillation:
        notes = mask_unconfident(mask, np.array(confidences), config.confidence_threshold)
        kept = rounded(np.array(confidences))
    return Chain(
        chain_id=part.id,
        sequence="".join(letters),
        positions=xyz.astype(np.float32),
        mask=mask,
        observed=np.ones(len(letters), bool),
        insertion_codes=codes,
        notes=notes,
        confidence=kept,
    )


def _plain_chains(
    data: bytes, path: str, config: FeaturizeConfig, is_distillation: bool
) -> dict[str, Chain] | None:
    """The chains of a file without anything that Biopython would have to weigh, else None.

    Plain is: one model, one record a line, no alternative locations or insertion codes, and
    every residue in one piece with each of its atoms once.
    """
    if not data.isascii() or not _records_only(data):
        return None
    try:
        atoms = read_pdb_atoms(data, path, config.caps)
    except MmcifError:
        return None  # for Biopython to refuse
    chain = atoms.chain & 0xFF
    water = np.isin(atoms.residue, [i for i, n in enumerate(atoms.residues) if n in _WATERS])
    flag = np.where(atoms.hetero, np.where(water, 2, 1), 0)
    key = (chain.astype(np.int64) * 4 + flag) * (1 << 32) + (atoms.number.astype(np.int64) + 10**6)
    starts = np.flatnonzero(np.r_[True, (np.diff(key) != 0) | (np.diff(atoms.residue) != 0)])
    if (
        atoms.odd
        or len(np.unique(chain)) == 0
        or (atoms.altloc != _BLANK).any()
        or (atoms.insertion != _BLANK).any()
        or any(" " in name for name in atoms.atoms)
        or len(np.unique(key[starts])) != len(starts)
    ):
        return None
    run = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(key)]))
    if len(np.unique(run * len(atoms.atoms) + atoms.atom)) != len(run):
        return None
    chains = {}
    for code in dict.fromkeys(chain.tolist()):
        rows = np.flatnonzero(chain == code)
        made = _plain_chain(chr(code), rows, run[rows], atoms, path, config, is_distillation)
        if made is not None:
            chains[made.chain_id] = made
    return chains


def _records_only(data: bytes) -> bool:
    """Whether from the first atom to the last there are atom and TER records alone."""
    text = b"\n" + data
    kinds = (b"\nATOM  ", b"\nHETATM")
    firsts = [place for kind in kinds if (place := text.find(kind)) >= 0]
    if not firsts:
        return False
    between = text[min(firsts) : max(map(text.rfind, kinds)) + 1]
    rows = sum(map(text.count, kinds))
    rest = sum(map(between.count, kinds)) + between.count(b"\nTER")
    return (
        between.count(b"\n") == rest + 1
        and rest + 1 >= rows
        and text.count(b"\nMODEL ") == text.count(b"\nMODEL ", 0, min(firsts)) <= 1
    )


def _plain_chain(
    name: str,
    rows: Int[np.ndarray, " A"],
    run: Int[np.ndarray, " A"],
    atoms: PdbAtoms,
    path: str,
    config: FeaturizeConfig,
    is_distillation: bool,
) -> Chain | None:
    slot = np.array([ATOM_ORDER.get(name, -1) for name in atoms.atoms], np.int64)[atoms.atom[rows]]
    rows, run, slot = rows[slot >= 0], run[slot >= 0], slot[slot >= 0]
    if not len(rows):
        return None
    if config.strict_pdb:
        refuse_chain_id(name, path)
    residues, first, index = np.unique(run, return_index=True, return_inverse=True)
    xyz = np.zeros([len(residues), ATOM37_NUM, 3], np.float32)
    mask = np.zeros([len(residues), ATOM37_NUM], np.uint8)
    confidence = np.zeros([len(residues), ATOM37_NUM])
    xyz[index, slot], mask[index, slot] = atoms.xyz[rows], 1
    confidence[index, slot] = atoms.b_factor[rows]
    names = [atoms.residues[code] for code in atoms.residue[rows[first]]]
    notes: tuple[str, ...] = ()
    kept: tuple[float, ...] = ()
    if is_distillation:
        notes = mask_unconfident(mask, confidence.max(-1), config.confidence_threshold)
        kept = rounded(confidence.max(-1))
    return Chain(
        chain_id=name,
        sequence="".join(map(standard_letter, names)),
        positions=xyz,
        mask=mask,
        observed=np.ones(len(names), bool),
        notes=notes,
        confidence=kept,
    )


def count_models(data: bytes) -> int:
    """Models of a file: MODEL records, or the one without."""
    return max(1, (b"\n" + data).count(b"\nMODEL "))


def refuse_chain_id(chain_id: str, path: str) -> None:
    """Raise for a chain id that OpenFold does not take.

    Raises:
        MmcifError: it is not one letter from A to Z.
    """
    if not (len(chain_id) == 1 and "A" <= chain_id <= "Z"):
        raise MmcifError(f"chain id {chain_id!r}, OpenFold takes A-Z only", path=path or None)

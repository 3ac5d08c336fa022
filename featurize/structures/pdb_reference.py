"""Legacy PDB text as OpenFold's `from_pdb_string` reads it: what is seen is the sequence.

Meant for predictions. Every residue with one of the 37 atoms is one of the chain.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.atom_sites import mask_unconfident, rounded
from evofeed.featurize.structures.residue_names import standard_letter
from evofeed.featurize.structures.structure import Chain, Structure
from evofeed.protein.residues import ATOM37_NUM, ATOM_ORDER


def parse_pdb_as_openfold(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig,
    is_distillation: bool = False,
) -> Structure:
    """As `parse_pdb`, by Biopython, which OpenFold uses."""
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

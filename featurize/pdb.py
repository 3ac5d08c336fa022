"""Legacy PDB text -> `Structure`: what is seen is the sequence.

Biopython reads the records; residues without any of the 37 atoms are left out,
as in OpenFold and AF2. Distillation sets come in this format: there a residue
counts only if one of its B factors (pLDDT) passes the threshold.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.residue_names import standard_letter
from evofeed.featurize.structure import Chain, Structure
from evofeed.residues import ATOM37_NUM, ATOM_ORDER


def parse_pdb(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The chains of a legacy PDB file, first model.

    Raises:
        MmcifError: not a PDB file, no protein in it, or, with `strict_pdb`, something
            that OpenFold does not support.
    """
    config = config or FeaturizeConfig()
    model, models = _first_model(data, path)
    if config.strict_pdb and models != 1:
        raise MmcifError(f"{models} models, OpenFold takes one", path=path or None)
    chains = {}
    for part in model:
        chain = _chain(part, path, config, is_distillation)
        if chain is not None:
            chains[chain.chain_id] = chain
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


def _first_model(data: bytes, path: str) -> tuple[Any, int]:
    from Bio.PDB.PDBParser import PDBParser

    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not a PDB text file", path=path or None)
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
    if config.strict_pdb and not (len(part.id) == 1 and "A" <= part.id <= "Z"):
        raise MmcifError(f"chain id {part.id!r}, OpenFold takes A-Z only", path=path or None)
    xyz = np.array(positions)
    if not np.all(np.abs(xyz) < 1e7):  # NaN fails too
        raise MmcifError("a coordinate is no number", path=path or None)
    mask = np.array(masks, np.uint8)
    notes: tuple[str, ...] = ()
    if is_distillation:
        confident = np.array(confidences) > config.confidence_threshold
        mask *= confident[:, None]
        if not confident.all():
            notes = (f"{(~confident).sum()} residues below confidence",)
    return Chain(
        chain_id=part.id,
        sequence="".join(letters),
        positions=xyz.astype(np.float32),
        mask=mask,
        observed=np.ones(len(letters), bool),
        insertion_codes=codes,
        notes=notes,
    )

"""Entries that other programs have parsed already -> `Structure`.

<entry>.npz       Boltz's tables of atoms, residues and chains
<entry>.npz       OpenFold3's atoms, one array an annotation (biotite's AtomArray)
<entry>.pkl.gz    Protenix's "bioassembly": a pickle with biotite's AtomArray in it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError, MmcifError
from evofeed.base.shapes import Bool, Float, Int
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.packed_arrays import Inert, Npz, unpickle
from evofeed.featurize.structures.atom_sites import mask_unconfident, rounded
from evofeed.featurize.structures.residue_names import one_letter
from evofeed.featurize.structures.structure import Chain, Structure
from evofeed.protein.residues import ATOM37_NUM, ATOM_ORDER

_PROTEIN: Final = 0
"""Boltz's `mol_type` and OpenFold3's `molecule_type_id` of proteins."""


@dataclass(frozen=True, slots=True, eq=False)
class _Atoms:
    """The atoms of one chain: `residue` is the position in `sequence`."""

    sequence: str
    residue: Int[np.ndarray, " A"]
    names: list[str]
    positions: Float[np.ndarray, "A 3"]
    seen: Bool[np.ndarray, " A"]
    confidence: Float[np.ndarray, " A"] | None = None


def parse_atom_arrays(
    data: bytes,
    name: str,
    *,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The protein chains of an entry that Boltz, OpenFold3 or Protenix has parsed.

    Arguments and errors are those of `parse_structure`.
    """
    config = config or FeaturizeConfig()
    entry, _, suffix = name.rpartition(".")
    contents: Mapping[str, Any] = {}
    try:
        if suffix == "pkl":
            contents = unpickle(data, path)
            chains = _of_protenix(contents)
        else:
            tables = Npz(data, path, config.caps)
            chains = _of_boltz(tables) if "chains" in tables else _of_openfold3(tables)
    except InputError as error:
        raise MmcifError(error.message, path=path) from None
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        why = f"not an entry of Boltz, OpenFold3 or Protenix: {error!r}"[:300]
        raise MmcifError(why, path=path) from None
    if not chains:
        raise MmcifError("no protein chain in it", path=path)
    longest = max(len(atoms.sequence) for atoms in chains.values())
    if why := config.caps.excess("max_columns", longest, f"{longest} residues"):
        raise MmcifError(why, path=path)
    threshold = config.confidence_threshold if is_distillation else None
    resolution = float(contents.get("resolution") or 0.0)
    return Structure(
        file_id=entry,
        method="",
        release_date=str(contents.get("release_date") or ""),
        resolution=max(resolution, 0.0),
        sequences={chain: atoms.sequence for chain, atoms in chains.items()},
        place=lambda chain: _placed(chain, chains[chain], threshold),
        kind="arrays",
    )


def _placed(chain_id: str, atoms: _Atoms, threshold: float | None) -> Chain:
    num_res = len(atoms.sequence)
    slot = np.array([ATOM_ORDER.get(name, -1) for name in atoms.names], np.int64)
    inside = (atoms.residue >= 0) & (atoms.residue < num_res)
    rows = np.flatnonzero((slot >= 0) & atoms.seen & inside)
    positions = np.zeros([num_res, ATOM37_NUM, 3], np.float32)
    mask = np.zeros([num_res, ATOM37_NUM], np.uint8)
    positions[atoms.residue[rows], slot[rows]] = atoms.positions[rows]
    mask[atoms.residue[rows], slot[rows]] = 1
    observed = np.zeros(num_res, bool)
    observed[atoms.residue[inside & atoms.seen]] = True
    outside = int((~inside & atoms.seen).sum())
    notes: tuple[str, ...] = (f"{outside} atoms outside the sequence",) if outside else ()
    kept: tuple[float, ...] = ()
    if threshold is not None and atoms.confidence is not None:
        confidence = np.full([num_res, ATOM37_NUM], -np.inf)
        confidence[atoms.residue[rows], slot[rows]] = atoms.confidence[rows]
        notes += mask_unconfident(mask, confidence.max(-1), threshold)
        kept = rounded(confidence.max(-1))
        positions *= mask[..., None]
    return Chain(chain_id, atoms.sequence, positions, mask, observed, {}, notes, kept)


def _of_boltz(tables: Mapping[str, Any]) -> dict[str, _Atoms]:
    residues, valid = tables["residues"], tables["mask"]
    chains = {}
    for row, chain in enumerate(tables["chains"]):
        if chain["mol_type"] != _PROTEIN or not valid[row]:
            continue
        own = residues[chain["res_idx"] : chain["res_idx"] + chain["res_num"]]
        start = int(chain["atom_idx"])
        atoms = tables["atoms"][start : start + int(chain["atom_num"])]
        names = atoms["name"]
        if names.dtype.kind != "U":  # four codes a name, 32 below ASCII, 0 for none
            codes = np.where(names != 0, names.astype(np.uint8) + 32, 0).astype(np.uint8)
            names = np.char.decode(codes.view("S4").reshape(-1), "ascii", "replace")
        has_confidence = "plddt" in (atoms.dtype.names or ())
        chains[str(chain["name"])] = _Atoms(
            sequence="".join(one_letter(str(name)) for name in own["name"].tolist()),
            residue=np.repeat(np.arange(len(own)), own["atom_num"]),
            names=names.tolist(),
            positions=atoms["coords"],
            seen=atoms["is_present"].astype(bool),
            confidence=atoms["plddt"] if has_confidence else None,
        )
    return chains


def _of_openfold3(tables: Mapping[str, Any]) -> dict[str, _Atoms]:
    """All residues are there, the unresolved ones with NaN for positions."""
    names, confidence = tables["res_name"], tables.get("b_factor", None)
    chains = {}
    for chain, rows in _chains(tables["chain_id"], tables["molecule_type_id"] == _PROTEIN):
        number, coord = tables["res_id"][rows], tables["coord"][rows]
        position = number - int(number.min())
        letters = ["X"] * (int(position.max()) + 1)
        for place, name in zip(position.tolist(), names[rows], strict=True):
            letters[place] = one_letter(str(name))
        chains[chain] = _Atoms(
            sequence="".join(letters),
            residue=position,
            names=tables["atom_name"][rows].tolist(),
            positions=np.nan_to_num(coord),
            seen=np.isfinite(coord).all(-1),
            confidence=confidence[rows] if confidence is not None else None,
        )
    return chains


def _of_protenix(entry: Mapping[str, Any]) -> dict[str, _Atoms]:
    """Sequences by entity; atoms that were not resolved are marked so."""
    array = entry["atom_array"]
    if not isinstance(array, Inert):
        raise ValueError("its atom_array is none of biotite's")
    notes, coord = vars(array)["_annot"], vars(array)["_coord"]
    entity, kinds = notes["label_entity_id"], entry["entity_poly_type"]
    protein = np.isin(entity, [key for key, kind in kinds.items() if "polypeptide" in kind])
    seen = notes["is_resolved"].astype(bool) if "is_resolved" in notes else np.isfinite(coord[:, 0])
    b_factor = notes.get("b_factor")
    return {
        chain: _Atoms(
            sequence=str(entry["sequences"][str(entity[rows[0]])]),
            residue=notes["res_id"][rows].astype(np.int64) - 1,
            names=notes["atom_name"][rows].tolist(),
            positions=np.nan_to_num(coord[rows]),
            seen=seen[rows],
            confidence=b_factor[rows] if b_factor is not None else None,
        )
        for chain, rows in _chains(notes["chain_id"], protein)
    }


def _chains(chain_id: np.ndarray, protein: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Name and rows of each protein chain."""
    for chain in dict.fromkeys(chain_id[protein].tolist()):
        yield str(chain), np.flatnonzero(protein & (chain_id == chain))

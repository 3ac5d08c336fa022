"""Entries that other programs have parsed already -> `Structure`.

<entry>.npz       Boltz's tables of atoms, residues and chains
<entry>.npz       OpenFold3's atoms, one array an annotation (biotite's AtomArray)
<entry>.pkl.gz    Protenix's "bioassembly": a pickle with biotite's AtomArray in it
"""

from __future__ import annotations

from collections.abc import Mapping
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
        raise MmcifError(error.message, path=path or None) from None
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        why = f"not an entry of Boltz, OpenFold3 or Protenix: {error!r}"[:300]
        raise MmcifError(why, path=path or None) from None
    if not chains:
        raise MmcifError("no protein chain in it", path=path or None)
    longest = max(len(atoms.sequence) for atoms in chains.values())
    if longest > config.caps.max_columns:
        raise MmcifError(
            f"{longest} residues, more than the cap of {config.caps.max_columns}", path=path or None
        )
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
    atoms, residues, valid = tables["atoms"], tables["residues"], tables["mask"]
    chains = {}
    for row, chain in enumerate(tables["chains"]):
        if chain["mol_type"] != _PROTEIN or not valid[row]:
            continue
        own = residues[chain["res_idx"] : chain["res_idx"] + chain["res_num"]]
        start, count = int(chain["atom_idx"]), int(chain["atom_num"])
        here = atoms[start : start + count]
        names = here["name"]
        if names.dtype.kind == "U":
            texts = names.tolist()
        else:  # four codes a name, 32 below ASCII, 0 for none
            codes = np.where(names != 0, names.astype(np.uint8) + 32, 0).astype(np.uint8)
            texts = [bytes(row).rstrip(b"\0").decode("ascii", "replace") for row in codes]
        plddt = "plddt" if "plddt" in (here.dtype.names or ()) else None
        chains[str(chain["name"])] = _Atoms(
            sequence="".join(one_letter(str(name)) for name in own["name"].tolist()),
            residue=np.repeat(np.arange(len(own)), own["atom_num"]),
            names=texts,
            positions=here["coords"],
            seen=here["is_present"].astype(bool),
            confidence=here[plddt] if plddt else None,
        )
    return chains


def _of_openfold3(tables: Mapping[str, Any]) -> dict[str, _Atoms]:
    """All residues are there, the unresolved ones with NaN for positions."""
    protein = tables["molecule_type_id"] == _PROTEIN
    chain_id, number, name = tables["chain_id"], tables["res_id"], tables["res_name"]
    coord = tables["coord"]
    confidence = tables.get("b_factor", None)
    atom_name = tables["atom_name"]
    chains = {}
    for chain in dict.fromkeys(chain_id[protein].tolist()):
        rows = np.flatnonzero(protein & (chain_id == chain))
        first = int(number[rows].min())
        letters = ["X"] * (int(number[rows].max()) - first + 1)
        for position, residue in zip((number[rows] - first).tolist(), name[rows], strict=True):
            letters[position] = one_letter(str(residue))
        chains[str(chain)] = _Atoms(
            sequence="".join(letters),
            residue=number[rows] - first,
            names=atom_name[rows].tolist(),
            positions=np.nan_to_num(coord[rows]),
            seen=np.isfinite(coord[rows]).all(-1),
            confidence=confidence[rows] if confidence is not None else None,
        )
    return chains


def _of_protenix(entry: Mapping[str, Any]) -> dict[str, _Atoms]:
    """Sequences by entity; atoms that were not resolved are marked so."""
    array = entry["atom_array"]
    if not isinstance(array, Inert):
        raise ValueError("its atom_array is none of biotite's")
    values = vars(array)
    notes, coord = values["_annot"], values["_coord"]
    chain_id, entity = notes["chain_id"], notes["label_entity_id"]
    protein = np.isin(
        entity, [key for key, kind in entry["entity_poly_type"].items() if "polypeptide" in kind]
    )
    seen = notes["is_resolved"].astype(bool) if "is_resolved" in notes else np.isfinite(coord[:, 0])
    chains = {}
    for chain in dict.fromkeys(chain_id[protein].tolist()):
        rows = np.flatnonzero(protein & (chain_id == chain))
        b_factor = notes.get("b_factor")
        chains[str(chain)] = _Atoms(
            sequence=str(entry["sequences"][str(entity[rows[0]])]),
            residue=notes["res_id"][rows].astype(np.int64) - 1,
            names=notes["atom_name"][rows].tolist(),
            positions=np.nan_to_num(coord[rows]),
            seen=seen[rows],
            confidence=b_factor[rows] if b_factor is not None else None,
        )
    return chains

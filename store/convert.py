"""Other people's feature files -> chain records.

Reads OpenFold/AlphaFold raw feature dicts (`feature_dict`: msa in HHblits codes,
deletion_matrix_int, template_*, all_atom_*) from `.npz` and, if the caller says
that the files are trusted, from pickles (`.pkl`, `.pkl.gz`, `.pkl.xz`): those are
opened by a child process that builds nothing but numpy arrays and plain values.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import FeatureError, InputError
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, HHBLITS_TO_RESTYPE, RESTYPES
from evofeed.store.history import Snapshot
from evofeed.store.writer import DatasetWriter

PICKLES: Final = (".pkl", ".pickle", ".pkl.gz", ".pkl.xz", ".pickle.gz", ".pickle.xz")
MAX_NBYTES: Final = 4 << 30
"""Of one feature file, unpacked."""
CHILD_SECONDS: Final = 300


def convert(
    paths: Iterable[str | Path],
    uri: str,
    *,
    trusted_pickle: bool = False,
    ref: str = "main",
    expect: str | None = None,
) -> Snapshot:
    """Publish feature files as a snapshot; a file's name up to its first dot is the chain id.

    Files that cannot be read are left out and listed in the manifest's `dropped`.

    Raises:
        InputError: a pickle without `trusted_pickle`, or no file could be read.
        RefConflict: `ref` is not at `expect`.
    """
    writer, dropped, done = DatasetWriter(uri), [], 0
    for path in map(Path, paths):
        refuse_untrusted(path, trusted_pickle)
        try:
            writer.add(read_features(path, trusted_pickle=trusted_pickle))
            done += 1
        except (InputError, FeatureError) as error:
            dropped.append({"chain_id": _chain_id(path), "reason": str(error)})
    if not done:
        first = dropped[0]["reason"] if dropped else "none was given"
        raise InputError(f"none of {len(dropped)} files could be read: {first}")
    return writer.commit(ref, expect=expect, config={"convert": "features"}, dropped=dropped)


def read_features(path: str | Path, *, trusted_pickle: bool = False) -> ChainRecord:
    """The chain of one feature file: a raw feature dict.

    Raises:
        InputError: it is no such file; names what is missing.
    """
    path = Path(path)
    refuse_untrusted(path, trusted_pickle)
    if path.name.endswith(PICKLES):
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "features.npz"
            _unpickle_in_child(path, plain)
            arrays = _load_npz(plain)
    else:
        arrays = _load_npz(path)
    return from_raw_features(arrays, _chain_id(path), str(path))


def refuse_untrusted(path: Path, trusted_pickle: bool) -> None:
    """Pickles run code when opened: only for those who say they made them."""
    if path.name.endswith(PICKLES) and not trusted_pickle:
        raise InputError(
            "a pickle can run any code when it is opened; if you made it yourself, "
            "say so with --trusted-pickle",
            path=str(path),
        )


def _chain_id(path: Path) -> str:
    return path.name.split(".")[0]


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            nbytes = sum(item.file_size for item in archive.infolist())
        if nbytes > MAX_NBYTES:
            raise InputError(f"{nbytes} bytes unpacked, {MAX_NBYTES} allowed", path=str(path))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"no readable npz: {error}", path=str(path)) from None


def _unpickle_in_child(path: Path, target: Path) -> None:
    command = [sys.executable, "-m", "evofeed.store.unpickle", str(path), str(target)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"not read within {CHILD_SECONDS} s", path=str(path)) from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"pickle refused: {why}", path=str(path))


def from_raw_features(features: Mapping[str, Any], chain_id: str, path: str = "") -> ChainRecord:
    """A record from OpenFold's raw feature dict.

    Template coordinates keep their values; their centre is not in the dict and is
    taken as 0, so they are stored as plain floats.

    Raises:
        InputError: a needed key is missing or has an impossible shape.
    """
    try:
        fields = _chain_fields(features) | _template_fields(features)
        return ChainRecord(chain_id=chain_id, **fields).validate()
    except KeyError as error:
        raise InputError(f"no {error} in the feature dict", path=path, item=chain_id) from None
    except (ValueError, IndexError, TypeError, FeatureError) as error:
        raise InputError(f"no raw features: {error}", path=path, item=chain_id) from None


def _chain_fields(features: Mapping[str, Any]) -> dict[str, Any]:
    aatype = np.asarray(features["aatype"]).argmax(-1).astype(np.uint8)
    msa = HHBLITS_TO_RESTYPE[np.asarray(features["msa"]).astype(np.int64)]
    deletions = np.asarray(features["deletion_matrix_int"])
    row, column = np.nonzero(deletions)
    species = _texts(features.get("msa_species_identifiers", [b""] * len(msa)))
    fields: dict[str, Any] = {
        "sequence": "".join((RESTYPES + "X")[code] for code in aatype),
        "description": "".join(_texts(features.get("domain_name", []))[:1]),
        "aatype": aatype,
        "residue_index": np.asarray(features["residue_index"]).astype(np.int32),
        "msa": msa,
        "deletion_row": row.astype(np.int32),
        "deletion_column": column.astype(np.int32),
        "deletion_count": deletions[row, column].astype(np.int32),
        "msa_source": np.zeros(len(msa), np.uint8),
        "msa_sources": ("converted",),
        "msa_species": species,
        "hhblits_profile_counts": profile_counts(msa),
    }
    if "sequence" in features:
        fields["sequence"] = _texts(features["sequence"])[0]
    if "all_atom_positions" in features:
        fields |= {
            "all_atom_positions": np.asarray(features["all_atom_positions"]).astype(np.float32),
            "all_atom_mask": np.asarray(features["all_atom_mask"]).astype(np.uint8),
            "resolution": float(np.asarray(features.get("resolution", 0.0)).reshape(-1)[0]),
            "is_distillation": bool(np.asarray(features.get("is_distillation", 0)).any()),
            "release_date": "".join(_texts(features.get("release_date", []))[:1]),
        }
    return fields


def _template_fields(features: Mapping[str, Any]) -> dict[str, Any]:
    num_res = len(features["aatype"])
    onehot = np.asarray(features.get("template_aatype", np.zeros([0, num_res, GAP + 1])))
    count = len(onehot)
    positions = np.asarray(features.get("template_all_atom_positions", np.zeros([0])))
    mask = np.asarray(
        features.get("template_all_atom_mask", features.get("template_all_atom_masks", []))
    )
    scores = np.asarray(features.get("template_sum_probs", np.zeros(count)))
    names = _texts(features.get("template_domain_names", []))
    return {
        "template_aatype": HHBLITS_TO_RESTYPE[onehot.argmax(-1)].reshape(count, num_res),
        "template_all_atom_positions": positions.astype(np.float32).reshape(count, num_res, 37, 3),
        "template_all_atom_mask": mask.astype(np.uint8).reshape(count, num_res, 37),
        "template_center": np.zeros([count, 3], np.float32),
        "template_sum_probs": scores.astype(np.float32).reshape(-1)[:count],
        "template_domain_names": names[:count],
        "template_sequence": _texts(features.get("template_sequence", []))[:count],
        "template_release_date": ("",) * count,
    }


def profile_counts(msa: np.ndarray) -> np.ndarray:
    """Occurrences of each code in each column, i32[L, 22]."""
    _, num_res = msa.shape
    place = msa.astype(np.int64) + np.arange(num_res) * (GAP + 1)
    counts = np.bincount(place.ravel(), minlength=num_res * (GAP + 1))
    return counts.reshape(num_res, GAP + 1).astype(np.int32)


def _texts(values: Any) -> tuple[str, ...]:
    flat = np.asarray(values, dtype=object).reshape(-1).tolist()
    return tuple(v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in flat)

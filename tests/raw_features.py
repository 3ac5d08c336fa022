"""Raw features as OpenFold has them -> chain records, so that recorded chains can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.store.records import profile_counts

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, HHBLITS_TO_RESTYPE, RESTYPES


def from_raw_features(features: Mapping[str, Any], chain_id: str) -> ChainRecord:
    """The record of a raw feature dict; template coordinates have no centre there, so it is 0."""
    fields = _chain_fields(features) | _template_fields(features)
    return ChainRecord(chain_id=chain_id, **fields).validate()


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


def _texts(values: Any) -> tuple[str, ...]:
    flat = np.asarray(values, dtype=object).reshape(-1).tolist()
    return tuple(v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in flat)

"""A chain record as OpenFold's raw feature dict, before its feature pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, RESTYPE_TO_HHBLITS, UNKNOWN


def to_openfold_raw(record: ChainRecord) -> dict[str, np.ndarray]:
    """OpenFold's raw features: names, shapes, dtypes and values to the bit.

    `msa` and `template_aatype` are in HHblits order. Structure keys exist if the record has a
    structure, `release_date` if it is known.
    """
    num_res = record.num_res
    # OpenFold's empty templates are float and have one empty name.
    codes: Any = np.int64 if record.num_templates else np.float32
    template_codes = RESTYPE_TO_HHBLITS[record.template_aatype]
    features = {
        "aatype": np.eye(UNKNOWN + 1, dtype=np.int32)[record.aatype],
        "between_segment_residues": np.zeros(num_res, np.int32),
        "domain_name": _texts([record.description]),
        "residue_index": record.residue_index.astype(np.int32),
        "seq_length": np.full(num_res, num_res, np.int32),
        "sequence": _texts([record.sequence]),
        "deletion_matrix_int": record.deletion_matrix(),
        "msa": RESTYPE_TO_HHBLITS.astype(np.int32)[record.msa],
        "num_alignments": np.full(num_res, record.num_alignments, np.int32),
        "msa_species_identifiers": _texts(record.msa_species),
        "template_aatype": np.eye(GAP + 1, dtype=codes)[template_codes],
        "template_all_atom_mask": record.template_all_atom_mask.astype(np.float32),
        "template_all_atom_positions": record.template_all_atom_positions,
        "template_domain_names": _texts(record.template_domain_names or [""]),
        "template_sequence": _texts(record.template_sequence or [""]),
        "template_sum_probs": record.template_sum_probs[:, None],
    }
    if record.all_atom_positions is not None and record.all_atom_mask is not None:
        features |= {
            "all_atom_positions": record.all_atom_positions,
            "all_atom_mask": record.all_atom_mask.astype(np.float32),
            "resolution": np.array([record.resolution], np.float32),
            "is_distillation": np.array(record.is_distillation, np.float32),
        }
        if record.release_date:
            features["release_date"] = _texts([record.release_date])
    return features


def _texts(values: Sequence[str]) -> np.ndarray:
    return np.array([value.encode() for value in values], dtype=object)

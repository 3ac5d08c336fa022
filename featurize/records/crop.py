"""Limits on a record's MSA rows and templates, applied before it is stored.

The result depends only on the record, the settings and the seed; each cut is listed in `dropped`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from evofeed.base.shapes import Int
from evofeed.featurize.config import CropConfig
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import RECORD

_CODES = 22


def crop_record(record: ChainRecord, crop: CropConfig) -> ChainRecord:
    """The record within the limits of rows and templates; residues are cropped in the loader."""
    digest = hashlib.sha256(f"{record.config_digest}:{crop.digest}".encode()).hexdigest()
    record = record.replace(config_digest=digest)
    rows = max_rows(record.num_res, crop)
    if rows is not None and rows < record.num_alignments:
        record = _with_rows(record, _choose_rows(record, rows, crop))
    if crop.max_templates is not None and crop.max_templates < record.num_templates:
        note = f"{crop.max_templates} of {record.num_templates} templates kept"
        fields = _sliced_fields(record, "T", slice(crop.max_templates))
        record = record.replace(**fields, dropped=(*record.dropped, note))
    return record


def _sliced_fields(record: ChainRecord, dim: str, index: slice | np.ndarray) -> dict[str, Any]:
    """All fields that have this dimension in the feature table, indexed along it."""
    fields: dict[str, Any] = {}
    for feature in RECORD:
        value = getattr(record, feature.name)
        if dim not in feature.dims or value is None:
            continue
        if feature.dtype == "str":
            fields[feature.name] = tuple(value[i] for i in np.arange(len(value))[index].tolist())
        else:
            before = (slice(None),) * feature.dims.index(dim)
            fields[feature.name] = np.ascontiguousarray(value[(*before, index)])
    return fields


def max_rows(num_res: int, crop: CropConfig) -> int | None:
    """Largest number of MSA rows for a chain of this length; None is unlimited."""
    limits = [crop.max_msa_rows] if crop.max_msa_rows is not None else []
    if crop.msa_budget is not None:
        limits.append(max(1, int(crop.msa_budget / num_res)))
    return min(limits, default=None)


def _choose_rows(record: ChainRecord, rows: int, crop: CropConfig) -> Int[np.ndarray, " R"]:
    """Row numbers to keep, ascending, the query among them."""
    if crop.row_choice == "first":
        return np.arange(rows)
    # Raw Philox words: their stream is promised not to change with numpy's version.
    text = f"{crop.seed}:{record.chain_id}:0:rows".encode()
    key = int.from_bytes(hashlib.sha256(text).digest(), "big") % (1 << 64)
    words = np.random.Philox(key=key).random_raw(record.num_alignments - 1)
    return np.concatenate([[0], np.sort(np.argsort(words, kind="stable")[: rows - 1] + 1)])


def _with_rows(record: ChainRecord, rows: Int[np.ndarray, " R"]) -> ChainRecord:
    new_position = np.full(record.num_alignments, -1, np.int32)
    new_position[rows] = np.arange(len(rows), dtype=np.int32)
    deletion_row = new_position[record.deletion_row]
    fields = _sliced_fields(record, "N", rows) | _sliced_fields(record, "K", deletion_row >= 0)
    fields["deletion_row"] = deletion_row[deletion_row >= 0]
    counts = [(fields["msa"] == code).sum(0, dtype=np.int32) for code in range(_CODES)]
    note = f"{len(rows)} of {record.num_alignments} MSA rows kept"
    return record.replace(
        **fields, hhblits_profile_counts=np.stack(counts, axis=-1), dropped=(*record.dropped, note)
    )

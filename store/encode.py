"""ChainRecord -> packed columns: the smallest codec that is exact, per chain."""

from __future__ import annotations

from typing import Any

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.store.atoms import pack_mask, pack_positions
from evofeed.store.codecs import (
    ROW_COUNTS,
    compressed,
    pack_integers,
    pack_range,
    pack_raw,
    pack_runs,
    pack_strings,
    packed,
)
from evofeed.store.layout import COLUMNS, Codec, PackedColumn
from evofeed.store.manifest import canonical_json
from evofeed.store.msa_codec import pack_rows, reorder_runs, row_starts, stored_order

META_FIELDS = tuple(
    """sequence description msa_sources template_domain_names template_sequence
    template_release_date resolution release_date method is_distillation inputs config_digest
    dropped""".split()
)
"""Record fields stored as one JSON object: small, and not needed by a training step."""
OPTIONAL_META = ("confidence",)
"""Fields of that object that are left out if empty."""


def encode_record(record: ChainRecord, *, zstd: bool = False) -> dict[str, PackedColumn]:
    """Every column of one chain. A pure function of the record: same record, same bytes.

    Raises:
        FeatureError: the record does not fit the feature table.
        ValueError: the record has no residue.
    """
    record.validate()
    sizes = record.sizes
    order = stored_order(record.chain_id, sizes["N"])
    meta = {name: getattr(record, name) for name in META_FIELDS}
    meta |= {name: value for name in OPTIONAL_META if (value := getattr(record, name))}
    dims = [*sizes.values(), record.all_atom_positions is not None, 0, 0, 0]
    columns = {
        "dims": pack_raw(np.array(dims, np.int32)),
        "aatype": pack_raw(record.aatype),
        "residue_index": pack_range(record.residue_index),
        "hhblits_profile_counts": pack_integers(record.hhblits_profile_counts),
        "msa_order": pack_integers(order),
        "msa": packed(Codec.MSA5, pack_rows(record.msa, order)),
        "msa_source": pack_runs(record.msa_source),
        "msa_species": pack_strings(record.msa_species),
        "meta": packed(Codec.JSON, canonical_json(meta)),
    }
    columns |= _deletions(record, order) | _structure(record) | _templates(record)
    if zstd:
        columns = {
            n: column if n == "dims" else compressed(column) for n, column in columns.items()
        }
    return {name: columns[name] for name in COLUMNS}


def _deletions(record: ChainRecord, order: np.ndarray) -> dict[str, PackedColumn]:
    """Deletions per stored row, columns and counts in stored row order; RAW if unsorted."""
    row, column, count = record.deletion_row, record.deletion_column, record.deletion_count
    rows, num_res = record.msa.shape
    cell = row.astype(np.int64) * num_res + column
    inside = not len(row) or (
        min(row.min(), column.min()) >= 0 and row.max() < rows and column.max() < num_res
    )
    if not inside or np.any(np.diff(cell) <= 0):
        values = {"deletion_row": row, "deletion_column": column, "deletion_count": count}
        return {name: pack_raw(value) for name, value in values.items()}
    per_row = np.bincount(row, minlength=rows)
    permutation = reorder_runs(row_starts(per_row), order)
    return {
        "deletion_row": _row_counts(per_row[order]),
        "deletion_column": pack_integers(column[permutation]),
        "deletion_count": pack_integers(count[permutation]),
    }


def _row_counts(counts: np.ndarray) -> PackedColumn:
    highest = counts.max(initial=0)
    codec = next(c for c, dtype in ROW_COUNTS.items() if highest <= np.iinfo(dtype).max)
    return packed(codec, counts.astype(ROW_COUNTS[codec]).tobytes())


def _structure(record: ChainRecord) -> dict[str, PackedColumn]:
    if record.all_atom_positions is None or record.all_atom_mask is None:
        empty = pack_raw(np.zeros(0, np.uint8))
        return {"all_atom_mask": empty, "all_atom_positions": empty}
    mask, positions = _atoms(record.all_atom_mask, record.all_atom_positions, None)
    return {"all_atom_mask": mask, "all_atom_positions": positions}


def _templates(record: ChainRecord) -> dict[str, PackedColumn]:
    aatype = record.template_aatype
    center = np.repeat(record.template_center, record.num_res, axis=0)
    mask, positions = _atoms(
        record.template_all_atom_mask.reshape(-1, 37),
        record.template_all_atom_positions.reshape(-1, 37, 3),
        center,
    )
    small = aatype.max(initial=0) < 32
    return {
        "template_aatype": packed(Codec.MSA5, pack_rows(aatype)) if small else pack_raw(aatype),
        "template_sum_probs": pack_raw(record.template_sum_probs),
        "template_center": pack_raw(record.template_center),
        "template_all_atom_mask": mask,
        "template_all_atom_positions": positions,
    }


def _atoms(
    mask: np.ndarray, positions: np.ndarray, center: np.ndarray | None
) -> tuple[PackedColumn, PackedColumn]:
    if mask.max(initial=0) > 1:
        return pack_raw(mask), pack_raw(positions)
    fixed: Any = pack_positions(positions, mask, center)
    small = packed(Codec.MASK37, pack_mask(mask))
    return small, pack_raw(positions) if fixed is None else packed(Codec.FIXED, fixed)

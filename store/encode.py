"""ChainRecord -> packed columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from evofeed.features import ChainRecord
from evofeed.store.layout import COLUMNS, Codec, PackedColumn

META_FIELDS = (
    "sequence",
    "description",
    "msa_sources",
    "template_domain_names",
    "template_sequence",
    "template_release_date",
    "resolution",
    "release_date",
    "method",
    "is_distillation",
    "inputs",
    "config_digest",
    "dropped",
)
"""Record fields kept as one JSON object: small, and never needed by a training step."""


def raw(array: np.ndarray) -> PackedColumn:
    """Little-endian C-order bytes of an array."""
    return packed(Codec.RAW, np.ascontiguousarray(array).tobytes())


def packed(codec: Codec, payload: bytes) -> PackedColumn:
    """An uncompressed column."""
    return PackedColumn(codec, memoryview(payload), raw_nbytes=len(payload))


def as_json(value: Any) -> PackedColumn:
    """Canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return packed(Codec.JSON, text.encode())


def encode_record(record: ChainRecord) -> dict[str, PackedColumn]:
    """Every column of one chain. A pure function of the record: same record, same bytes."""
    record.validate()
    sizes = record.sizes
    has_structure = record.all_atom_positions is not None
    dims = [sizes["L"], sizes["N"], sizes["K"], sizes["T"], has_structure, 0, 0, 0]
    columns: dict[str, PackedColumn] = {"dims": raw(np.array(dims, np.int32))}
    for name in COLUMNS:
        if name in ("dims", "msa_order", "msa_species", "meta"):
            continue
        value = getattr(record, name)
        columns[name] = raw(np.zeros(0, np.uint8) if value is None else value)
    columns["msa_order"] = raw(np.arange(sizes["N"], dtype=np.int32))
    columns["msa_species"] = as_json(list(record.msa_species))
    columns["meta"] = as_json({name: getattr(record, name) for name in META_FIELDS})
    return {name: columns[name] for name in COLUMNS}

"""Packed columns -> arrays and ChainRecord: the plain numpy reference of every codec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evofeed.errors import FeatureError, ShardCorrupt
from evofeed.features import RECORD, ChainRecord
from evofeed.store.encode import META_FIELDS
from evofeed.store.layout import Codec, PackedColumn

FEATURES = {feature.name: feature for feature in RECORD}


@dataclass(frozen=True, slots=True)
class Place:
    """Where bytes came from, for error messages."""

    chain_id: str
    path: str

    def corrupt(self, message: str) -> ShardCorrupt:
        """The error to raise for wrong bytes of this chain."""
        return ShardCorrupt(message, path=self.path, item=self.chain_id)


def decode_dims(columns: Mapping[str, PackedColumn], place: Place) -> dict[str, int]:
    """Sizes `L N K T` and `has_structure` (0 or 1) of a chain."""
    payload = columns["dims"].payload
    if len(payload) != 32:
        raise place.corrupt(f"column dims has {len(payload)} bytes, not 32")
    dims = np.frombuffer(payload, np.int32).tolist()
    if min(dims) < 0 or dims[4] > 1:
        raise place.corrupt(f"impossible dims {dims}")
    return dict(zip(("L", "N", "K", "T", "has_structure"), dims, strict=False))


def decode_array(
    name: str, columns: Mapping[str, PackedColumn], dims: Mapping[str, int], place: Place
) -> np.ndarray:
    """One numeric feature of the table, full length."""
    feature, column = FEATURES[name], columns[name]
    shape = feature.shape(dict(dims))
    dtype = np.dtype(feature.dtype)
    if column.codec != Codec.RAW:
        raise place.corrupt(f"column {name} cannot have codec {column.codec.name}")
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(column.payload) != expected:
        raise place.corrupt(f"column {name} has {len(column.payload)} bytes, not {expected}")
    return np.frombuffer(column.payload, dtype).reshape(shape).copy()


def decode_json(column: PackedColumn, name: str, place: Place) -> Any:
    """The value of a JSON column."""
    try:
        return json.loads(bytes(column.payload))
    except ValueError as error:
        raise place.corrupt(f"column {name} is no JSON: {error}") from None


def decode_record(columns: Mapping[str, PackedColumn], place: Place) -> ChainRecord:
    """The whole chain.

    Raises:
        ShardCorrupt: any column does not decode to what the feature table says.
    """
    dims = decode_dims(columns, place)
    fields: dict[str, Any] = {}
    for feature in RECORD:
        if feature.dtype == "str":
            continue
        absent = feature.stage == "structure" and not dims["has_structure"]
        fields[feature.name] = None if absent else decode_array(feature.name, columns, dims, place)
    fields["msa_species"] = tuple(decode_json(columns["msa_species"], "msa_species", place))
    meta = decode_json(columns["meta"], "meta", place)
    try:
        fields.update({name: meta[name] for name in META_FIELDS})
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(value)
        return ChainRecord(chain_id=place.chain_id, **fields).validate()
    except (KeyError, TypeError, ValueError, FeatureError) as error:
        raise place.corrupt(f"the record is not valid: {error}") from None

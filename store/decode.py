"""Packed columns -> arrays and ChainRecord, full or cropped: the numpy reference of the codecs.

No size in a file is trusted: every count is checked against the bytes that are present before
memory is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from evofeed.base.errors import FeatureError, ShardCorrupt
from evofeed.base.files import parse_json
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import RECORD, Feature
from evofeed.store.atoms import unpack_mask, unpack_positions
from evofeed.store.codecs import (
    ROW_COUNTS,
    decompressed,
    unpack_integers,
    unpack_runs,
    unpack_strings,
)
from evofeed.store.encode import META_FIELDS, OPTIONAL_META
from evofeed.store.layout import Codec, Compression, PackedColumn
from evofeed.store.msa_codec import reorder_runs, row_nbytes, row_starts, unpack_rows

FEATURES = {feature.name: feature for feature in RECORD}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where bytes came from, for error messages."""

    chain_id: str
    path: str

    def corrupt(self, message: str) -> ShardCorrupt:
        """The error to raise for wrong bytes of this chain."""
        return ShardCorrupt(message, path=self.path, item=self.chain_id)

    @contextmanager
    def decoding(self, problem: str) -> Iterator[None]:
        """Raises errors of the block as ShardCorrupt of these bytes."""
        try:
            yield
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, FeatureError) as error:
            raise self.corrupt(f"{problem}: {error}") from None


class ChainDecoder:
    """Arrays of one chain from its packed columns, each decoded on first use.

    Raises:
        ShardCorrupt: from any method, when bytes do not decode to what the feature
            table says; names the column.
    """

    def __init__(self, columns: Mapping[str, PackedColumn], origin: Origin) -> None:
        self.columns, self.origin = columns, origin
        self.dims = self._dims()
        self._cache: dict[str, Any] = {}

    def _dims(self) -> dict[str, int]:
        payload = self.columns["dims"].payload
        if len(payload) != 32:
            raise self.origin.corrupt(f"column dims has {len(payload)} bytes, not 32")
        values = np.frombuffer(payload, np.int32).tolist()
        dims = dict(zip(("L", "N", "K", "T", "has_structure"), values, strict=False))
        if min(values) < 0 or dims["has_structure"] > 1 or not dims["L"] or not dims["N"]:
            raise self.origin.corrupt(f"impossible dims {values}")
        return dims

    def raw(self, name: str) -> PackedColumn:
        """A column, decompressed."""
        column = self.columns[name]
        if column.compression == Compression.NONE:
            return column
        with self.origin.decoding(f"column {name} does not decompress"):
            return decompressed(column, self._limit(name))

    def _limit(self, name: str) -> int:
        """Maximum bytes of a valid column after decompression."""
        if name in ("meta", "msa_species"):
            return 1 << 28
        feature = FEATURES.get(name)
        size = _size(feature, self.dims) * 4 if feature else 4 * self.dims["N"]
        return size + 8 * (self.dims["N"] + self.dims["T"]) + 64

    def array(self, name: str) -> np.ndarray:
        """One numeric feature of the table, full length, rows in the record's order."""
        if name not in self._cache:
            with self.origin.decoding(f"column {name}"):
                self._cache[name] = self._decode(FEATURES[name])
        array: np.ndarray = self._cache[name]
        return array

    def _decode(self, feature: Feature) -> np.ndarray:
        decode: Callable[[], np.ndarray] | None = getattr(self, f"_{feature.name}", None)
        if decode is not None:
            return decode()
        if feature.name.endswith("_mask"):
            return self._mask(feature)
        if feature.name.endswith("_positions"):
            return self._positions(feature)
        if feature.name in ("deletion_column", "deletion_count"):
            return self._sparse(feature.name)
        return self._plain(feature)

    def _plain(self, feature: Feature) -> np.ndarray:
        shape = feature.shape(self.dims)
        count, dtype = _size(feature, self.dims), np.dtype(feature.dtype)
        self._check_size(feature)
        return unpack_integers(self.raw(feature.name), dtype, count).reshape(shape)

    def _check_size(self, feature: Feature) -> None:
        # RANGE and RUNS can claim any length, so L and N are first checked against stored bytes.
        column = self.raw("aatype" if feature.dims[0] == "L" else "msa")
        if feature.name not in ("aatype", "msa") and column.codec in (Codec.RAW, Codec.MSA5):
            stored = len(column.payload)
            per_row = row_nbytes(self.dims["L"]) if column.codec == Codec.MSA5 else 1
            expected = self.dims["N"] * per_row if feature.dims[0] == "N" else self.dims["L"]
            if feature.dims[0] in "LN" and stored != expected:
                raise ValueError(f"dims {self.dims} do not fit {stored} bytes")

    @cached_property
    def order(self) -> np.ndarray:
        """Original row of each stored row, i64[N]."""
        rows, column = self.dims["N"], self.raw("msa_order")
        with self.origin.decoding("column msa_order"):
            order = unpack_integers(column, np.dtype(np.int32), rows).astype(np.int64)
            if order[0] != 0 or np.any(np.bincount(order, minlength=rows) != 1):
                raise ValueError("not a permutation that begins with the query")
        return order

    @cached_property
    def inverse(self) -> np.ndarray:
        """Stored row of each original row, i64[N]."""
        inverse = np.empty_like(self.order)
        inverse[self.order] = np.arange(len(inverse))
        return inverse

    def _msa(self) -> np.ndarray:
        return self._rows("msa", self.dims["N"], self.inverse)

    def msa_rows(self, rows: np.ndarray) -> np.ndarray:
        """Selected rows of the alignment, u8[R, L], by their numbers in the record."""
        stored = self.inverse[rows]
        with self.origin.decoding("column msa"):
            return self._rows("msa", self.dims["N"], stored)

    def _template_aatype(self) -> np.ndarray:
        if self.columns["template_aatype"].codec == Codec.RAW:
            return self._plain(FEATURES["template_aatype"])
        return self._rows("template_aatype", self.dims["T"], np.arange(self.dims["T"]))

    def _rows(self, name: str, rows: int, stored: np.ndarray) -> np.ndarray:
        column = self.raw(name)
        expected = rows * row_nbytes(self.dims["L"])
        if column.codec != Codec.MSA5 or len(column.payload) != expected:
            raise ValueError(f"{len(column.payload)} bytes are not {rows} rows in MSA5")
        packed = np.frombuffer(column.payload, np.uint8)
        packed = packed.reshape(rows, row_nbytes(self.dims["L"]))
        return unpack_rows(packed, self.dims["L"], stored)

    def _msa_source(self) -> np.ndarray:
        self._check_size(FEATURES["msa_source"])
        return unpack_runs(self.raw("msa_source"), self.dims["N"])

    def row_counts(self) -> np.ndarray | None:
        """Deletions in each stored row, i64[N]; None if `deletion_row` itself is stored."""
        column = self.raw("deletion_row")
        if column.codec not in ROW_COUNTS:
            return None
        dtype = np.dtype(ROW_COUNTS[column.codec])
        if len(column.payload) != self.dims["N"] * dtype.itemsize:
            raise ValueError(f"{len(column.payload)} bytes are not {self.dims['N']} row counts")
        counts = np.frombuffer(column.payload, dtype).astype(np.int64)
        if int(counts.sum()) != self.dims["K"]:
            raise ValueError(f"row counts do not add up to {self.dims['K']}")
        return counts

    def _deletion_row(self) -> np.ndarray:
        counts = self.row_counts()
        if counts is None:
            return self._plain(FEATURES["deletion_row"])
        rows = np.arange(self.dims["N"], dtype=np.int32)
        return np.asarray(np.repeat(rows, counts[self.inverse]))

    def _sparse(self, name: str) -> np.ndarray:
        values = unpack_integers(self.raw(name), np.dtype(np.int32), self.dims["K"])
        counts = self.row_counts()
        if counts is None:
            return values
        return np.asarray(values[reorder_runs(row_starts(counts), self.inverse)])

    def deletion_matrix(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Deletions left of each cell, dense, i32[R, L], for selected rows or all."""
        L, N = self.dims["L"], self.dims["N"]
        row, column = self.array("deletion_row"), self.array("deletion_column")
        count = self.array("deletion_count")
        for values, bound in ((row, N), (column, L)):
            if values.min(initial=0) < 0 or values.max(initial=0) >= bound:
                raise self.origin.corrupt("a deletion is outside the alignment")
        selected, inverse = np.unique(np.arange(N) if rows is None else rows, return_inverse=True)
        crop_row = np.full(N, -1)
        crop_row[selected] = np.arange(len(selected))
        row = crop_row[row]
        dense = np.zeros([len(selected), L], np.int32)
        dense[row[row >= 0], column[row >= 0]] = count[row >= 0]
        return dense if rows is None else dense[inverse]

    def _mask(self, feature: Feature) -> np.ndarray:
        column, residues = self.raw(feature.name), _size(feature, self.dims) // 37
        if column.codec == Codec.RAW:
            return self._plain(feature)
        if column.codec != Codec.MASK37 or len(column.payload) != 5 * residues:
            raise ValueError(f"{len(column.payload)} bytes are not {residues} atom masks")
        return unpack_mask(column.payload, residues).reshape(feature.shape(self.dims))

    def _positions(self, feature: Feature) -> np.ndarray:
        column = self.raw(feature.name)
        if column.codec == Codec.RAW:
            return self._plain(feature)
        if column.codec != Codec.FIXED:
            raise ValueError(f"codec {column.codec.name} holds no coordinates")
        mask = self.array(feature.name.replace("_positions", "_mask")).reshape(-1, 37)
        center = None
        if feature.stage == "template":
            center = np.repeat(self.array("template_center"), self.dims["L"], axis=0)
        positions = unpack_positions(column.payload, mask, center)
        return positions.reshape(feature.shape(self.dims))

    def species(self) -> tuple[str, ...]:
        """Species of each row, in the record's order."""
        with self.origin.decoding("column msa_species"):
            self._check_size(FEATURES["msa_species"])
            return unpack_strings(self.raw("msa_species"), self.dims["N"])

    def meta(self) -> dict[str, Any]:
        """The record's remaining fields."""
        with self.origin.decoding("column meta"):
            values = parse_json(bytes(self.raw("meta").payload))
            fields = {name: values[name] for name in META_FIELDS}
            fields |= {name: values[name] for name in OPTIONAL_META if name in values}
        return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}

    def record(self) -> ChainRecord:
        """The full chain."""
        fields: dict[str, Any] = self.meta() | {"msa_species": self.species()}
        for feature in RECORD:
            if feature.dtype != "str":
                absent = feature.stage == "structure" and not self.dims["has_structure"]
                fields[feature.name] = None if absent else self.array(feature.name)
        with self.origin.decoding("the record is not valid"):
            return ChainRecord(chain_id=self.origin.chain_id, **fields).validate()


def _size(feature: Feature, dims: Mapping[str, int]) -> int:
    size = 1
    for extent in feature.shape(dict(dims)):
        size *= extent
    return size


_SPARSE = frozenset({"deletion_row", "deletion_column", "deletion_count"})


def crop_features(
    decoder: ChainDecoder,
    columns: Sequence[str],
    residues: slice | None,
    rows: slice | Sequence[int] | np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Arrays of `columns` without those of an absent structure; see `Dataset.read`.

    Only the selected rows of `msa` are unpacked; other columns are decoded in full, then cropped.

    Raises:
        ValueError, IndexError: the window has steps; a row does not exist.
        ShardCorrupt: bytes do not decode.
    """
    length, depth = decoder.dims["L"], decoder.dims["N"]
    start, stop, step = (residues or slice(None)).indices(length)
    if step != 1:
        raise ValueError("a residue window has step 1")
    stop = max(start, stop)
    selected = np.arange(depth)[rows if rows is not None else slice(None)]
    full = stop - start == length and np.array_equal(selected, np.arange(depth))
    cropped: dict[str, np.ndarray] = {}
    sparse = not full and any(name in _SPARSE for name in columns)
    if sparse or "deletion_matrix" in columns:
        cropped["deletion_matrix"] = decoder.deletion_matrix(selected)[:, start:stop]
    if sparse:
        cropped |= _renumbered(cropped["deletion_matrix"])
    for name in columns:
        absent = not decoder.dims["has_structure"] and name.startswith("all_atom_")
        if name not in cropped and not absent:
            cropped[name] = _crop(decoder, name, selected, start, stop)
    return {name: cropped[name] for name in columns if name in cropped}


def _crop(decoder: ChainDecoder, name: str, rows: np.ndarray, start: int, stop: int) -> np.ndarray:
    """One feature of the table, cropped to rows and residues."""
    feature = FEATURES[name]
    if feature.dtype == "str":
        texts = decoder.species() if name == "msa_species" else decoder.meta()[name]
        value = np.array(texts, dtype=np.str_)
    elif name == "msa":
        return decoder.msa_rows(rows)[:, start:stop]
    else:
        value = decoder.array(name)
    for axis, dim in enumerate(feature.dims):
        if dim == "L":
            value = value[(slice(None),) * axis + (slice(start, stop),)]
        elif dim == "N":
            value = value[(slice(None),) * axis + (rows,)]
    return value


def _renumbered(dense: np.ndarray) -> dict[str, np.ndarray]:
    """Sparse deletions of a crop, from its dense matrix."""
    row, column = np.nonzero(dense)
    return {
        "deletion_row": row.astype(np.int32),
        "deletion_column": column.astype(np.int32),
        "deletion_count": dense[row, column],
    }

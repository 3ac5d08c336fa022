"""The shard's columns, codec ids and column header: FORMAT.md as code.

A shard is an Arrow IPC file with one record batch per chain. Every column but
`chain_id` is LargeBinary and holds a 24-byte header and a payload, so a column
can be located, checked and decoded without Arrow.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import pyarrow as pa
import xxhash

from evofeed.base.errors import SchemaMismatch, ShardCorrupt

FORMAT_VERSION: Final = (1, 2)
"""Major, minor. A reader refuses another major and reads every lower minor."""
CHAINS_VERSION: Final = (1, 0)
"""Version in shards and indexes of chains, and in manifests of snapshots of chains alone."""
ASSEMBLIES_VERSION: Final = (1, 1)
"""Version in manifests of snapshots with assemblies."""
ENTRIES_VERSION: Final = (1, 2)
"""Version in shards and tables of entries, and in manifests of snapshots with entries."""

COLUMNS: Final = tuple(
    """dims aatype residue_index hhblits_profile_counts msa_order deletion_row deletion_column
    deletion_count msa all_atom_mask all_atom_positions template_aatype template_sum_probs
    template_center template_all_atom_mask template_all_atom_positions msa_source msa_species
    meta""".split()
)
"""Binary columns in file order: those that a training step needs come first."""

CHAIN: Final = "chain"
KINDS: Final = {
    CHAIN: COLUMNS,
    "entry": ("record", "position", "openfold3", "boltz", "protenix"),
    "alignment": ("rows", "letters"),
    "molecules": ("molecules",),
    "components": ("components",),
}
"""Columns by kind of record; a shard holds one kind."""
COLUMN_NUMBER: Final = {name: number for number, name in enumerate(COLUMNS)}


class Codec(IntEnum):
    """Encoding of an array as a payload's bytes; FORMAT.md has the bits."""

    RAW = 0
    MSA5 = 1
    UINT8 = 2
    UINT16 = 3
    RANGE = 4
    RUNS = 5
    STRINGS = 6
    MASK37 = 7
    FIXED = 8
    JSON = 9
    ROW_COUNTS8 = 10
    ROW_COUNTS16 = 11
    ROW_COUNTS32 = 12
    ARRAYS = 13
    FIXED_FLAT = 14


class Compression(IntEnum):
    """Compression of the full payload, after its codec."""

    NONE = 0
    ZSTD = 1


_CODECS: Final = {int(codec): codec for codec in Codec}
_COMPRESSIONS: Final = {int(compression): compression for compression in Compression}
_HEADER: Final = struct.Struct("<BBHIIIQ")
HEADER_NBYTES: Final = _HEADER.size
MAX_PAYLOAD: Final = 2**32 - 8
"""Bytes in one column of one chain, at most."""
UNPACKED_FREE: Final = 16 << 20
UNPACKED_RATIO: Final = 64


def max_unpacked(nbytes: int) -> int:
    """Maximum size of `nbytes` of zstd once decompressed: 16 MiB, or 64 times as many bytes.

    A payload that exceeds it is stored uncompressed.
    """
    return max(UNPACKED_FREE, UNPACKED_RATIO * nbytes)


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """One column of one chain as the shard has it.

    `payload` holds the stored bytes, compressed or not; `raw_nbytes` is their size once
    decompressed.
    """

    codec: Codec
    payload: memoryview
    compression: Compression = Compression.NONE
    raw_nbytes: int = 0


def column_seed(chain_id: str, column: str) -> int:
    """Seed of a column's checksum: a column in another chain's or column's position fails it."""
    return int(xxhash.xxh3_64_intdigest(f"{chain_id}\0{column}".encode()))


def _checksum(head: bytes, payload: memoryview | bytes, seed: int) -> int:
    return int(xxhash.xxh3_64_intdigest(payload, seed ^ int.from_bytes(head[:8], "little")))


def pack_column(chain_id: str, column: str, packed: PackedColumn) -> bytes:
    """Header and payload of one column, ready to be stored."""
    nbytes = len(packed.payload)
    if max(nbytes, packed.raw_nbytes) > MAX_PAYLOAD:
        raise ValueError(f"{chain_id}: column {column} needs {nbytes} bytes, over {MAX_PAYLOAD}")
    fields = (int(packed.codec), int(packed.compression), 0, nbytes, packed.raw_nbytes, 0)
    head = _HEADER.pack(*fields, 0)
    checksum = _checksum(head, packed.payload, column_seed(chain_id, column))
    return _HEADER.pack(*fields, checksum) + bytes(packed.payload)


def unpack_column(
    data: memoryview, chain_id: str, column: str, path: str, *, verify: bool = True
) -> PackedColumn:
    """The column that starts at the first byte of `data`; padding may follow it.

    Raises:
        ShardCorrupt: the header does not fit the bytes or the checksum is wrong.
    """
    ids = chain_id, column, path
    if len(data) < HEADER_NBYTES:
        raise _corrupt(*ids, f"{len(data)} bytes are too few for a column header")
    codec, compression, zero, nbytes, raw_nbytes, spare, checksum = _HEADER.unpack_from(data)
    if zero or spare or codec not in _CODECS or compression not in _COMPRESSIONS:
        raise _corrupt(*ids, f"unknown codec {codec} or compression {compression}")
    if HEADER_NBYTES + nbytes > len(data) or (not compression and raw_nbytes != nbytes):
        raise _corrupt(*ids, f"it claims {nbytes} bytes and has {len(data) - HEADER_NBYTES}")
    payload = data[HEADER_NBYTES : HEADER_NBYTES + nbytes]
    if verify and checksum != _checksum(bytes(data[:8]), payload, column_seed(chain_id, column)):
        raise _corrupt(*ids, "checksum does not match")
    return PackedColumn(_CODECS[codec], payload, _COMPRESSIONS[compression], raw_nbytes)


def _corrupt(chain_id: str, column: str, path: str, why: str) -> ShardCorrupt:
    return ShardCorrupt(f"column {column}: {why}", path=path, item=chain_id)


def arrow_schema(kind: str = CHAIN) -> pa.Schema:
    """Schema of every shard of a kind that this version writes."""
    key, version = ("chain_id", CHAINS_VERSION) if kind == CHAIN else ("record_id", ENTRIES_VERSION)
    fields = [pa.field(key, pa.large_utf8(), nullable=False)]
    fields += [pa.field(name, pa.large_binary(), nullable=False) for name in KINDS[kind]]
    codecs = [c for c in Codec if kind != CHAIN or c <= Codec.ROW_COUNTS32]
    return pa.schema(
        fields,
        metadata={
            "evofeed.format": "evofeed-shard",
            "evofeed.version": "{}.{}".format(*version),
            "evofeed.codecs": json.dumps({c.name: int(c) for c in codecs}, separators=(",", ":")),
            **({} if kind == CHAIN else {"evofeed.kind": kind}),
        },
    )


def check_version(version: Any, path: str) -> None:
    """Refuse a format this reader does not know.

    Raises:
        SchemaMismatch: another major version, or none.
    """
    try:
        major, minor = (int(part) for part in version)
    except (TypeError, ValueError):
        raise SchemaMismatch(f"{version!r} is not a format version", path=path) from None
    if major != FORMAT_VERSION[0] or minor > FORMAT_VERSION[1] or minor < 0:
        latest = "{}.{}".format(*FORMAT_VERSION)
        raise SchemaMismatch(
            f"format {major}.{minor}, this evofeed reads up to {latest}: upgrade evofeed", path=path
        )


def check_schema(schema: pa.Schema, path: str) -> str:
    """The kind of a shard, its schema and version checked.

    Raises:
        SchemaMismatch: not a shard, or of a kind or version that this evofeed does not read.
        ShardCorrupt: its columns are not those of its kind.
    """
    metadata = schema.metadata or {}
    if metadata.get(b"evofeed.format") != b"evofeed-shard":
        raise SchemaMismatch("an Arrow file, but not an evofeed shard", path=path)
    check_version(metadata.get(b"evofeed.version", b"").decode(errors="replace").split("."), path)
    kind = str(metadata.get(b"evofeed.kind", CHAIN.encode()).decode(errors="replace"))
    if kind not in KINDS:
        raise SchemaMismatch(f"a shard of {kind!r}, which this evofeed does not read", path=path)
    if not schema.equals(arrow_schema(kind)):
        raise ShardCorrupt("columns are not those of its format version", path=path)
    return kind

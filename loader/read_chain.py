"""One chain's bytes from a shard into a slot, checked; nothing is decoded on the way.

What a sample needs is at the front of a chain's bytes, so it is one ranged
read straight into the slot. Columns stay in the shard's own codecs, which kernels on
the device decode; only what is compressed besides is decompressed here and put behind.
Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from evofeed.base.errors import AccessDenied, ChainRefused, ShardCorrupt, StoreError
from evofeed.loader.catalog import ChainLocation
from evofeed.loader.checks import check_part
from evofeed.loader.config import EntryConfig, LoaderConfig
from evofeed.store.inner import (
    COLUMN_NUMBER,
    COLUMNS,
    HEADER_NBYTES,
    ChainDecoder,
    Compression,
    Origin,
    PackedColumn,
    Storage,
    SupportsForget,
    answers,
    unpack_column,
)

ALWAYS: Final = (
    "aatype",
    "residue_index",
    "hhblits_profile_counts",
    "msa_order",
    "deletion_row",
    "deletion_column",
    "deletion_count",
    "msa",
)
STRUCTURE: Final = ("all_atom_mask", "all_atom_positions")
TEMPLATES: Final = (
    "template_aatype",
    "template_sum_probs",
    "template_center",
    "template_all_atom_mask",
    "template_all_atom_positions",
)
_END: Final = COLUMNS.index("msa_source")
_NO_TEMPLATES_END: Final = COLUMNS.index("template_aatype")


class ReadRequest(NamedTuple):
    """One chain, or complex, to read into one slot."""

    number: int
    location: Any
    """A `ChainLocation`; with a `task`, an `AssemblyLocation` or an `EntryLocation`."""
    structure: bool
    templates: bool
    offset: int
    nbytes: int
    probe: Any = None
    """A chain of the same dataset that could be read: in an outage it cannot be read either."""
    task: tuple[int, LoaderConfig | EntryConfig] | None = None
    """Key and rules by which a complex or an entry is decided; None for a chain."""


class Part(NamedTuple):
    """One column in a slot: its codec, where its payload begins, from the slot's start,
    and for coordinates how many residues, atoms and exceptions it holds."""

    name: str
    codec: int
    """A `Codec`, as a plain number: these cross from process to process with every sample."""
    offset: int
    nbytes: int
    counts: tuple[int, ...] = ()


class Slab(NamedTuple):
    """What a slot holds: the columns, and the range of bytes worth copying."""

    parts: tuple[Part, ...]
    start: int
    stop: int
    seconds: float = 0.0
    """What reading and checking took."""


def span_of(location: ChainLocation, templates: bool) -> tuple[int, int]:
    """First byte and end, within the chain's bytes, of what a sample needs."""
    end = _END if templates and location.sizes[3] else _NO_TEMPLATES_END
    return location.starts[0], location.starts[end]


def slot_nbytes(location: ChainLocation, templates: bool) -> int:
    """Bytes a slot for the chain must have, decompressed columns included."""
    start, stop = span_of(location, templates)
    length, rows, deletions, num_templates = location.sizes
    decoded = length * (1 + 4 + 88 + rows) + 12 * deletions + 8 * rows
    decoded += 485 * length * (1 + num_templates * int(templates))
    return stop - start + decoded + 64 * len(COLUMNS)


def read_chain(storage: Storage, request: ReadRequest, slot: memoryview) -> Slab:
    """Fill a slot with what a sample needs of a chain and say where things are.

    Raises:
        ShardMissing, ShardCorrupt: the chain cannot be read; names shard and chain.
        ChainRefused: the storage does not answer, and does for the request's probe.
        AccessDenied: the storage does not let us read.
        StoreError: the storage does not answer.
    """
    with refusals(storage, request.probe):
        try:
            return _read_once(storage, request, slot)
        except ShardCorrupt:  # a flip on the way or in a cache heals itself
            if isinstance(storage, SupportsForget):
                storage.forget(request.location.key)
            return _read_once(storage, request, slot)


@contextlib.contextmanager
def refusals(storage: Storage, probe: Any) -> Iterator[None]:
    """Turn the error of a storage that answers for `probe` into `ChainRefused`."""
    try:
        yield
    except StoreError as error:
        passing = type(error) in (StoreError, AccessDenied)
        if passing and probe and answers(storage, probe.key, probe.offset):
            raise ChainRefused(error.message, path=error.path, item=error.item) from None
        raise


def _read_once(storage: Storage, request: ReadRequest, slot: memoryview) -> Slab:
    location = request.location
    start, stop = span_of(location, request.templates)
    origin = Origin(location.chain_id, f"{storage.uri}/{location.key}")
    try:
        storage.read_into(location.key, location.offset + start, slot[: stop - start])
    except StoreError as error:
        raise type(error)(error.message, path=origin.path, item=location.chain_id) from None
    except OSError as error:  # of a storage that does not say it our way
        raise StoreError(str(error), path=origin.path, item=location.chain_id) from None
    return _slab(request, slot, origin)


def _slab(request: ReadRequest, slot: memoryview, origin: Origin) -> Slab:
    start, stop = span_of(request.location, request.templates)
    starts = request.location.starts
    columns: dict[str, PackedColumn] = {}
    for number, name in enumerate(COLUMNS):
        if starts[number] < stop:
            data = slot[starts[number] - start : min(starts[number + 1], stop) - start]
            columns[name] = unpack_column(data, origin.chain_id, name, origin.path)
    decoder = ChainDecoder(columns, origin)
    if tuple(decoder.dims[name] for name in "LNKT") != request.location.sizes:
        raise origin.corrupt(f"it holds {decoder.dims}, the index says {request.location.sizes}")
    parts, end = [], stop - start
    for name in _wanted(request, decoder):
        column = columns[name]
        offset = starts[COLUMN_NUMBER[name]] - start + HEADER_NBYTES
        if column.compression != Compression.NONE:
            column = decoder.raw(name)
            offset = end + -end % 64
            end = offset + len(column.payload)
            slot[offset:end] = column.payload
        counts = check_part(name, column, decoder.dims, origin)
        parts.append(Part(name, int(column.codec), offset, len(column.payload), counts))
    first = min(part.offset for part in parts)
    last = max(part.offset + part.nbytes for part in parts)
    return Slab(tuple(parts), first - first % 64, last)


def _wanted(request: ReadRequest, decoder: ChainDecoder) -> tuple[str, ...]:
    """Columns a sample needs of this chain."""
    return (
        *ALWAYS,
        *(STRUCTURE if request.structure and decoder.dims["has_structure"] else ()),
        *(TEMPLATES if request.templates and decoder.dims["T"] else ()),
    )

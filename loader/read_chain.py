"""Reads one chain's bytes from a shard into a slot and checks them, without decoding.

The columns of a sample are at the front of a chain's bytes, so it is one ranged
read straight into the slot. Columns stay in the shard's codecs, which kernels on
the device decode; only compressed columns are decompressed here and appended.
Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from evofeed.base.errors import AccessDenied, ChainRefused, ShardCorrupt, StoreError
from evofeed.loader.catalog import ChainLocation
from evofeed.loader.checks import check_column
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

ALWAYS: Final = """aatype residue_index hhblits_profile_counts msa_order
    deletion_row deletion_column deletion_count msa""".split()
STRUCTURE: Final = "all_atom_mask all_atom_positions".split()
TEMPLATES: Final = """template_aatype template_sum_probs template_center
    template_all_atom_mask template_all_atom_positions""".split()
_END: Final = COLUMNS.index("msa_source")
_NO_TEMPLATES_END: Final = COLUMNS.index("template_aatype")


class ReadRequest(NamedTuple):
    """One chain, complex or entry to read into one slot."""

    number: int
    location: Any
    """A `ChainLocation`; with a `task`, an `AssemblyLocation` or an `EntryLocation`."""
    structure: bool
    templates: bool
    offset: int
    nbytes: int
    probe: Any = None
    """Location of a chain of the same dataset that was readable before: in an outage it is not."""
    task: tuple[int, LoaderConfig | EntryConfig] | None = None
    """Random key and rules for planning a complex or an entry; None for a chain."""


class SlotColumn(NamedTuple):
    """One column in a slot: its codec, the offset of its payload in the slot, and for
    coordinates the numbers of residues, atoms and exceptions."""

    name: str
    codec: int
    """A `Codec` as a plain number: columns are pickled between processes with every sample."""
    offset: int
    nbytes: int
    counts: tuple[int, ...] = ()


class Slab(NamedTuple):
    """Content of a slot: the columns, and the range of bytes to copy."""

    columns: tuple[SlotColumn, ...]
    start: int
    stop: int
    seconds: float = 0.0
    """Time for reading and checking."""


def span_of(location: ChainLocation, templates: bool) -> tuple[int, int]:
    """First byte and end, within the chain's bytes, of the columns of a sample."""
    end = _END if templates and location.sizes[3] else _NO_TEMPLATES_END
    return location.starts[0], location.starts[end]


def slot_nbytes(location: ChainLocation, templates: bool) -> int:
    """Bytes of a slot for the chain, decompressed columns included."""
    start, stop = span_of(location, templates)
    length, rows, deletions, num_templates = location.sizes
    decoded = length * (1 + 4 + 88 + rows) + 12 * deletions + 8 * rows
    decoded += 485 * length * (1 + num_templates * int(templates))
    return stop - start + decoded + 64 * len(COLUMNS)


def read_chain(storage: Storage, request: ReadRequest, slot: memoryview) -> Slab:
    """Fills a slot with the columns of a chain and returns their layout.

    Raises:
        ShardMissing, ShardCorrupt: the chain cannot be read; names shard and chain.
        ChainRefused: the storage does not answer, although it does for the request's probe.
        AccessDenied: the storage denies access.
        StoreError: the storage does not answer.
    """
    with chain_refusals(storage, request.probe):
        try:
            return _read_once(storage, request, slot)
        except ShardCorrupt:  # a bit flip in transfer or in a cache: a second read may be good
            if isinstance(storage, SupportsForget):
                storage.forget(request.location.key)
            return _read_once(storage, request, slot)


@contextlib.contextmanager
def chain_refusals(storage: Storage, probe: Any) -> Iterator[None]:
    """Turns the error of a storage that answers for `probe` into `ChainRefused`."""
    try:
        yield
    except StoreError as error:
        transient = type(error) in (StoreError, AccessDenied)
        if transient and probe and answers(storage, probe.key, probe.offset):
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
    except OSError as error:  # of a user's storage that raises no StoreError
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
    names = list(ALWAYS)
    if request.structure and decoder.dims["has_structure"]:
        names += STRUCTURE
    if request.templates and decoder.dims["T"]:
        names += TEMPLATES
    slot_columns, end = [], stop - start
    for name in names:
        column = columns[name]
        offset = starts[COLUMN_NUMBER[name]] - start + HEADER_NBYTES
        if column.compression != Compression.NONE:
            column = decoder.raw(name)
            offset = end + -end % 64
            end = offset + len(column.payload)
            slot[offset:end] = column.payload
        counts = check_column(name, column, decoder.dims, origin)
        slot_columns.append(
            SlotColumn(name, int(column.codec), offset, len(column.payload), counts)
        )
    first = min(column.offset for column in slot_columns)
    last = max(column.offset + column.nbytes for column in slot_columns)
    return Slab(tuple(slot_columns), first - first % 64, last)

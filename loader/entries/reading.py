"""One sample of an entry: its records read, decided on the host, packed into a slot.

Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import LoaderError
from evofeed.loader.entries.catalog import EntryPlace
from evofeed.loader.entries.projects import on_host, project_of
from evofeed.loader.entries_config import EntryConfig
from evofeed.loader.read_chain import ReadRequest, refusals
from evofeed.loader.views.packing import PackedSample, fill_slot, pack_sample
from evofeed.loader.views.protenix.queries import query_alignments
from evofeed.protein.alignment import Alignment
from evofeed.protein.datapoints import alignment_names
from evofeed.store.inner import RecordSpan, Storage, read_entry, read_value

_LOCK: Final = threading.Lock()


class EntryTask(NamedTuple):
    """What a reader must know to decide about a sample."""

    key: int
    config: EntryConfig

    def read(self, storage: Storage, request: ReadRequest, slot: memoryview) -> EntrySlab:
        """As `read_entry_sample`."""
        return read_entry_sample(storage, request, slot)


class EntrySlab(NamedTuple):
    """What a slot holds of a sample; `beside` has the bytes where a slot was too small."""

    where: PackedSample
    entry: str
    datapoint: tuple[str, ...]
    stop: int
    start: int = 0
    seconds: float = 0.0
    beside: bytes = b""


def read_entry_sample(storage: Storage, request: ReadRequest, slot: memoryview) -> EntrySlab:
    """Fill a slot with a planned sample and say where things are.

    Raises:
        ShardMissing, ShardCorrupt: a record cannot be read; names shard and record.
        ChainRefused: the storage does not answer, and does for the request's probe.
        LoaderError: the project has no sample of that chain.
    """
    with refusals(storage, request.probe):
        return _planned(storage, request, slot)


def _planned(storage: Storage, request: ReadRequest, slot: memoryview) -> EntrySlab:
    place: EntryPlace = request.place
    task: EntryTask = request.task
    rules = task.config
    packed, names = plan_entry(storage, place, task.key, rules)
    where = pack_sample(packed, on_host(rules.project))
    beside = b""
    if where.nbytes > len(slot):
        data = bytearray(where.nbytes)
        fill_slot(where, packed, memoryview(data))
        beside = bytes(data)
    else:
        fill_slot(where, packed, slot)
    return EntrySlab(where, place.chain_id, names, where.nbytes, beside=beside)


def plan_entry(
    storage: Storage, place: EntryPlace, key: int, rules: EntryConfig
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The decisions about a sample, and the names of the chains it was drawn for.

    Raises:
        StoreError: a record cannot be read.
        LoaderError: the project has no sample of that chain, or molecules are missing.
    """
    project = project_of(rules.project)
    record, section = read_entry(storage, place.span, rules.project)
    alignments = {span.record_id: span for span in place.alignments}
    names = {
        entity: name
        for entity, name in alignment_names(record, section).items()
        if name in alignments
    }
    tables = [shared_at(storage, place.molecules)]
    alone: dict[str, Alignment] = {}
    if rules.project == "protenix":  # whose rules ask for a component's type
        tables.append(shared_at(storage, place.components))
        queries = query_alignments(record, section, tables[1], names)
        alone = {one.name: one for one in queries.values()}
        names |= {entity: one.name for entity, one in queries.items()}
    view = project.view(record, section, tables[0], names, *tables[1:])
    found = [
        alone[name] if name in alone else _alignment(storage, alignments[name])
        for name in view.alignments
    ]
    try:
        packed = project.plan(view, found, place.datapoint, project.draws(key), rules.view)
    except ValueError as error:
        raise LoaderError(
            f"{rules.project} has no sample of chains {place.datapoint}: {error}",
            item=place.chain_id,
        ) from error
    return packed, tuple(str(view.chain_name[row]) for row in place.datapoint)


def _alignment(storage: Storage, span: RecordSpan) -> Alignment:
    alignment: Alignment = read_value(storage, span)
    return alignment


def shared_at(storage: Storage, span: RecordSpan) -> Any:
    """Reference molecules or components of a snapshot, read once a process."""
    with _LOCK:
        return _shared(_Storage(storage), span)


class _Storage:
    """A storage that is equal to others of the same address."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Storage) and other.storage.uri == self.storage.uri

    def __hash__(self) -> int:
        return hash(self.storage.uri)


@functools.lru_cache(maxsize=8)
def _shared(where: _Storage, span: RecordSpan) -> Any:
    return read_value(where.storage, span)

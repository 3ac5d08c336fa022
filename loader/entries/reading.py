"""One sample of an entry: its records read, decided on the host, packed into a slot.

Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

import datetime
import importlib
import re
import threading
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import LoaderError
from evofeed.loader.config import EntryConfig
from evofeed.loader.entries.catalog import EntryPlace
from evofeed.loader.read_chain import ReadRequest, refusals
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import BoltzConfig, OpenFold3Config, ProtenixConfig
from evofeed.loader.views.laid import Laid, OnHost, Sparse
from evofeed.loader.views.protenix.tables import query_alignments
from evofeed.protein.alignment import Alignment
from evofeed.protein.datapoints import alignment_names
from evofeed.protein.entry_record import EntryRecord
from evofeed.store.inner import RecordSpan, Storage, read_entry, read_value

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_LOCK: Final = threading.Lock()
_SHARED: Final[dict[tuple[str, RecordSpan], Any]] = {}
_MOST_SHARED: Final = 8
_ALIGN: Final = 16


class PackedArray(NamedTuple):
    """One array in a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class PackedSample(NamedTuple):
    """Where the features of a sample are, and arrays that never leave the host.

    Those of a dtype stand end to end.
    """

    arrays: tuple[PackedArray, ...]
    """In the slot: features, and where numbers stand among the zeros."""
    zeros: tuple[PackedArray, ...]
    """Elsewhere on the device: features of zeros and few numbers."""
    host: dict[str, np.ndarray]
    nbytes: int
    zero_nbytes: int


def pack_sample(laid: Laid) -> tuple[PackedSample, list[np.ndarray]]:
    """Where the features of a sample go, and the arrays of the slot."""
    sparse = {name: value for name, value in laid.items() if isinstance(value, Sparse)}
    zeros, zero_nbytes = _places(sparse)
    words = [(sparse[one.name].words(), one.offset // 4) for one in zeros]
    host = {name: value.value for name, value in laid.items() if isinstance(value, OnHost)}
    sent: dict[str, Any] = {
        "_at": np.concatenate([np.zeros(0, np.int64)] + [at + start for (at, _), start in words]),
        "_words": np.concatenate([np.zeros(0, np.int32)] + [value for (_, value), _ in words]),
        **{name: laid[name] for name in laid if name not in sparse and name not in host},
    }
    arrays, nbytes = _places(sent)
    values = [sent[one.name] for one in arrays]
    return PackedSample(arrays, zeros, host, nbytes, zero_nbytes), values


def _places(values: Mapping[str, Any]) -> tuple[tuple[PackedArray, ...], int]:
    """Places of arrays, dtype by dtype, and the bytes of all."""
    arrays, at = [], 0
    named = sorted((np.dtype(value.dtype).str, name) for name, value in values.items())
    for dtype, group in groupby(named, lambda pair: pair[0]):
        at += -at % _ALIGN
        for _, name in group:
            arrays.append(PackedArray(name, dtype, values[name].shape, at))
            at += arrays[-1].nbytes
    return tuple(arrays), at


def fill_slot(where: PackedSample, values: Iterable[np.ndarray], slot: memoryview) -> None:
    """Copy the arrays into a slot of at least `where.nbytes` bytes."""
    for array, value in zip(where.arrays, values, strict=True):
        out = np.frombuffer(slot, np.uint8, array.nbytes, array.offset)
        out[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


class EntrySlab(NamedTuple):
    """What a slot holds of a sample; `beside` has the bytes where a slot was too small."""

    where: PackedSample
    entry: str
    datapoint: tuple[str, ...]
    stop: int
    start: int = 0
    seconds: float = 0.0
    beside: bytes = b""


class EntryTask(NamedTuple):
    """What a reader must know to decide about a sample."""

    key: int
    config: EntryConfig

    def read(self, storage: Storage, request: ReadRequest, slot: memoryview) -> EntrySlab:
        """Fill a slot with a planned sample and say where things are.

        Raises:
            ShardMissing, ShardCorrupt: a record cannot be read; names shard and record.
            ChainRefused: the storage does not answer, and does for the request's probe.
            LoaderError: the project has no sample of that chain.
        """
        place: EntryPlace = request.place
        with refusals(storage, request.probe):
            laid, names = plan_entry(storage, place, self.key, self.config)
        where, values = pack_sample(laid)
        beside = where.nbytes > len(slot)
        data = memoryview(bytearray(where.nbytes)) if beside else slot
        fill_slot(where, values, data)
        rest = bytes(data) if beside else b""
        return EntrySlab(where, place.chain_id, names, where.nbytes, beside=rest)


def project_module(project: str, name: str) -> Any:
    """A module of a project's view, imported with the project's first sample."""
    return importlib.import_module(f"evofeed.loader.views.{project}.{name}")


def plan_entry(
    storage: Storage, place: EntryPlace, key: int, rules: EntryConfig
) -> tuple[Laid, tuple[str, ...]]:
    """The decisions about a sample, and the names of the chains it was drawn for.

    Raises:
        StoreError: a record cannot be read.
        LoaderError: the project has no sample of that chain, or molecules are missing.
    """
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
    make = getattr(project_module(rules.project, "tables"), f"{rules.project}_view")
    view = make(record, section, tables[0], names, *tables[1:])
    found = [
        alone[name] if name in alone else read_value(storage, alignments[name])
        for name in view.alignments
    ]
    if not isinstance(rules.view, BoltzConfig):
        found = [_with_earlier_templates(one, record, rules.view) for one in found]
    try:
        plan = project_module(rules.project, "plan").plan_sample
        laid = plan(view, found, place.datapoint, SampleDraws(key), rules.view)
    except ValueError as error:
        raise LoaderError(
            f"{rules.project} has no sample of chains {place.datapoint}: {error}",
            item=place.chain_id,
        ) from error
    return laid, tuple(str(view.chain_name[row]) for row in place.datapoint)


def _with_earlier_templates(
    alignment: Alignment, record: EntryRecord, config: OpenFold3Config | ProtenixConfig
) -> Alignment:
    """Without the templates that are not older than the entry: than the first of its dates, for
    Protenix the one that stands first. Where it has no date OpenFold3 has none, Protenix all."""
    last, hits, templates = "", alignment.hits, alignment.templates
    if dates := [date for date in record.release_dates if _DATE.fullmatch(date)]:
        days = datetime.timedelta(config.templates_before_days)
        date = dates[0] if isinstance(config, ProtenixConfig) else min(dates)
        last = (datetime.date.fromisoformat(date) - days).isoformat()
    return alignment.with_templates(
        templates and templates.until(last), hits and hits.until(last or "9999")
    )


def shared_at(storage: Storage, span: RecordSpan) -> Any:
    """Reference molecules or components of a snapshot, read once a process."""
    key = storage.uri, span
    with _LOCK:
        if key not in _SHARED:
            if len(_SHARED) == _MOST_SHARED:
                del _SHARED[next(iter(_SHARED))]
            _SHARED[key] = read_value(storage, span)
        return _SHARED[key]

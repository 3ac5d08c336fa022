"""A complex or an entry from its records into a slot, everything about the sample decided.

Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

from typing import Any

from evofeed.loader.config import EntryConfig
from evofeed.loader.packed import PackedSlab
from evofeed.loader.read_chain import ReadRequest, refusals
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.laid import Laid
from evofeed.store.inner import Storage, read_assembly


def read_sample(storage: Storage, request: ReadRequest, slot: memoryview) -> PackedSlab:
    """Fill a slot with a planned sample and say where things are.

    Raises:
        ShardMissing, ShardCorrupt: a record cannot be read; names shard and record.
        ChainRefused: the storage does not answer, and does for the request's probe.
        LoaderError: the project has no sample of that chain of an entry.
    """
    assert request.task is not None
    laid: Laid
    about: Any
    key, rules = request.task
    with refusals(storage, request.probe):
        if isinstance(rules, EntryConfig):
            from evofeed.loader.entries import reading

            laid, about = reading.plan_entry(storage, request.location, key, rules)
        else:
            from evofeed.loader.assembly.plan import plan_complex

            record = read_assembly(storage, request.location.span)
            laid, about = plan_complex(record, rules, SampleDraws(key))
    return PackedSlab.of(laid, about, slot)

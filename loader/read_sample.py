"""Reads the records of a complex or an entry, plans the sample, and packs it into a slot.

Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

from typing import Any

from evofeed.loader.config import EntryConfig
from evofeed.loader.packed import PackedSlab
from evofeed.loader.read_chain import ReadRequest, chain_refusals
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.laid import Laid
from evofeed.store.inner import Storage, read_assembly


def read_sample(storage: Storage, request: ReadRequest, slot: memoryview) -> PackedSlab:
    """Fills a slot with a planned sample and returns its layout.

    Raises:
        ShardMissing, ShardCorrupt: a record cannot be read; names shard and record.
        ChainRefused: the storage does not answer, although it does for the request's probe.
        LoaderError: the project has no sample of these chains of an entry.
    """
    assert request.task is not None
    laid: Laid
    metadata: Any
    key, rules = request.task
    with chain_refusals(storage, request.probe):
        if isinstance(rules, EntryConfig):
            from evofeed.loader.entries import reading

            laid, metadata = reading.plan_entry(storage, request.location, key, rules)
        else:
            from evofeed.loader.assembly.plan import plan_complex

            record = read_assembly(storage, request.location.span)
            laid, metadata = plan_complex(record, rules, SampleDraws(key))
    return PackedSlab.of(laid, metadata, slot)

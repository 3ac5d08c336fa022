"""Immutable Arrow shards of chain records, their index, and snapshots of them."""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.store.assemblies import Assemblies
    from evofeed.store.assembly_writer import add_assemblies
    from evofeed.store.cache import Cache
    from evofeed.store.card import DataCard, dataset_card
    from evofeed.store.dataset import Dataset
    from evofeed.store.entries import Entries
    from evofeed.store.entry_shards import write_records
    from evofeed.store.garbage import GcReport, gc
    from evofeed.store.history import Diff, Snapshot
    from evofeed.store.manifest import Manifest, ShardEntry
    from evofeed.store.refs import address_and_ref
    from evofeed.store.selection import Selection, select_chains, split_chains
    from evofeed.store.shard import write_shard
    from evofeed.store.snapshots import (
        add_entries,
        compact,
        copy_dataset,
        merge,
        remove_chains,
        tag,
    )
    from evofeed.store.writer import DatasetWriter

__all__ = [
    "Dataset",
    "Assemblies",
    "add_assemblies",
    "Entries",
    "add_entries",
    "write_records",
    "address_and_ref",
    "Cache",
    "DataCard",
    "dataset_card",
    "DatasetWriter",
    "write_shard",
    "Selection",
    "select_chains",
    "split_chains",
    "ShardEntry",
    "Manifest",
    "Snapshot",
    "Diff",
    "remove_chains",
    "merge",
    "compact",
    "copy_dataset",
    "tag",
    "gc",
    "GcReport",
]

__getattr__ = names_from(__name__)

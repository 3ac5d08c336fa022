"""Immutable Arrow shards of chain records, their index, and snapshots of them."""

from evofeed.store.dataset import Dataset
from evofeed.store.manifest import Manifest, ShardEntry
from evofeed.store.shard import write_shard
from evofeed.store.writer import DatasetWriter, Snapshot

__all__ = ["Dataset", "DatasetWriter", "Manifest", "ShardEntry", "Snapshot", "write_shard"]

"""A fuzzing campaign: thousands of faults of every kind in every file of a dataset.

    python tests/store/corruption.py FOLDER SEED KIND=ATTEMPTS [KIND=ATTEMPTS ...]

Prints `[kind, attempts, detected]`, one line for each kind. Each fault must raise a typed error
that names the file, or not change the values read; anything else ends with a traceback, and a
crash with a signal. It is a separate process so that pytest survives a crash, and without run-time
type checks it is ten times as fast.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.store.records import assert_same, published, random_record

from evofeed.base.errors import SchemaMismatch, ShardCorrupt, StoreError
from evofeed.store import Dataset
from evofeed.store.shard import shard_index

CHAINS = 4


def damage(data: bytes, rng: random.Random) -> bytes:
    """One fault: a flipped bit, a random byte, a truncation, zeros, or two swapped ranges."""
    damaged = bytearray(data)
    kind = rng.choice(("flip", "flip", "byte", "cut", "swap", "zero"))
    start = rng.randrange(len(damaged))
    if kind == "flip":
        damaged[start] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        damaged[start] = rng.randrange(256)
    elif kind == "cut":
        del damaged[start:]
    elif kind == "zero":
        damaged[start : start + 64] = bytes(len(damaged[start : start + 64]))
    else:
        size = rng.randrange(1, 200)
        other = rng.randrange(len(damaged))
        first, second = bytes(damaged[start : start + size]), bytes(damaged[other : other + size])
        damaged[start : start + len(second)] = second
        damaged[other : other + len(first)] = first
    return bytes(damaged)


class Campaign:
    """A small dataset, and faults in one kind of its files."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        sizes = {"num_alignments": 12, "num_templates": 2}
        self.records = [random_record(s, num_res=16 + s, **sizes) for s in range(CHAINS)]
        published(folder, self.records)
        self.dataset = Dataset.open(folder)
        self.spans = [self.dataset.spans.read_span(row).tobytes() for row in range(CHAINS)]
        (self.shard,) = (folder / "shards").iterdir()
        self.good = self.shard.read_bytes()
        self.index = shard_index(pa.py_buffer(self.good), self.shard.name, "here")

    def read(self) -> bool:
        """A damaged shard read through the index: each chain is exact, or an error names it."""
        self.shard.write_bytes(damage(self.good, self.rng))  # in place: the open file sees it
        num_damaged = 0
        for row, record in enumerate(self.records):
            try:
                assert self.dataset.spans.read_span(row).tobytes() == self.spans[row]
                if self.rng.random() < 0.05:
                    assert_same(self.dataset[record.chain_id], record)
            except ShardCorrupt as error:
                assert error.item == record.chain_id and self.shard.name in str(error)
                num_damaged += 1
        self.shard.write_bytes(self.good)
        return bool(num_damaged)

    def unchecked(self) -> bool:
        """The decoders on wrong bytes, checksums off: any values, but no crash."""
        row = self.rng.randrange(CHAINS)
        bad = damage(self.spans[row], self.rng).ljust(len(self.spans[row]), b"\0")
        span = np.frombuffer(bad, np.uint8).copy()
        self.dataset.spans.read_span = lambda *args, **kwargs: span  # type: ignore[method-assign]
        rows = self.rng.sample(range(self.records[row].num_alignments), 2)
        try:
            self.dataset.read([row], residues=slice(2, 9), rows=rows)
        except (ShardCorrupt, ValueError):
            return True
        return False

    def arrow(self) -> bool:
        """A shard opened as Arrow without knowing its hash."""
        try:
            damaged = pa.py_buffer(damage(self.good, self.rng))
            table = shard_index(damaged, self.shard.name, "here")
        except (ShardCorrupt, SchemaMismatch):
            return True
        same = ("chain_id", "num_res", "num_alignments", "num_templates", "column_offsets")
        assert table.select(same).equals(self.index.select(same))
        return False

    def catalogue(self, pattern: str) -> bool:
        """A small file: opening fails and names it, or everything is as it was."""
        (path,) = self.folder.glob(pattern)
        good = path.read_bytes()
        path.unlink()  # a new file: the old one may be mapped
        path.write_bytes(damage(good, self.rng))
        try:
            dataset = Dataset.open(self.folder)
            row = self.rng.randrange(CHAINS)
            assert dataset.digest == self.dataset.digest
            assert_same(dataset[row], self.records[row])
            return False
        except StoreError as error:
            assert error.path
            return True
        finally:
            path.unlink()
            path.write_bytes(good)

    def attempt(self, kind: str) -> bool:
        """One fault of a kind; True if it was detected."""
        kinds: dict[str, Callable[[], bool]] = {
            "read": self.read,
            "unchecked": self.unchecked,
            "arrow": self.arrow,
            "index": lambda: self.catalogue("snapshots/*/index.arrow"),
            "manifest": lambda: self.catalogue("snapshots/*/manifest.json"),
            "ref": lambda: self.catalogue("refs/main"),
        }
        return kinds[kind]()


if __name__ == "__main__":
    folder, seed, *kinds = sys.argv[1:]
    for kind, _, attempts in (argument.partition("=") for argument in kinds):
        campaign = Campaign(Path(folder, kind), int(seed))
        detected = sum(campaign.attempt(kind) for _ in range(int(attempts)))
        print(json.dumps([kind, int(attempts), detected]), flush=True)

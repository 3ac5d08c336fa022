"""Damaged files give typed errors; those that promise more than they hold take no memory.

On 4865567 reading the folder of the first test took 2,150,084,608 bytes more at the peak and named
the chain all the same: Arrow had unpacked it before its offsets were looked at. An index's lies
were believed, the column of 1.25 GB under zstd unpacked, an endless answer read without end.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from tests.bucket import local_bucket
from tests.store.records import published, random_record
from tests.store.test_http import Service, served

from evofeed.base.errors import SchemaMismatch, ShardCorrupt, StoreError
from evofeed.protein.chain_record import ChainRecord
from evofeed.store import Dataset
from evofeed.store.codecs import compressed
from evofeed.store.decode import ChainDecoder, Origin
from evofeed.store.encode import encode_record
from evofeed.store.http import HttpStorage
from evofeed.store.index import index_bytes, index_schema, read_index
from evofeed.store.layout import (
    COLUMNS,
    Codec,
    Compression,
    PackedColumn,
    arrow_schema,
    check_version,
    max_unpacked,
    pack_column,
)
from evofeed.store.manifest import Manifest, ShardEntry
from evofeed.store.opening import open_storage
from evofeed.store.shard import schema_end, shard_index, shard_key
from evofeed.store.snapshots import join_chains
from evofeed.store.writer import write_snapshot

ZEROS = 2 << 30
MOST = 100 << 20
RECORD = random_record(3, chain_id="bomb_A", num_res=40)
READER = """
import json, sys
from evofeed.store import Dataset
from evofeed.base.errors import StoreError

def peak():
    with open("/proc/self/status") as file:
        return int(file.read().split("VmHWM:")[1].split()[0]) * 1024

def faults(address):
    dataset = Dataset.open(address)
    found = [] if address.startswith("http") else dataset.verify(deep=True)
    for row in range(len(dataset)):
        try:
            dataset[row]
        except StoreError as error:
            found.append(error)
    return [[type(one).__name__, one.path, one.item] for one in found]

sound, hostile = sys.argv[1:]
assert not faults(sound)
before = peak()
print(json.dumps([faults(hostile), peak() - before]))
"""


def bomb(record: ChainRecord, size: int, codec: str) -> bytes:
    """A shard of one chain whose `msa` cell is so many zeros, compressed by Arrow."""
    columns, sink = encode_record(record), pa.BufferOutputStream()
    arrays: list[pa.Array] = [pa.array([record.chain_id], pa.large_utf8())]
    for name in COLUMNS:
        cell = pa.py_buffer(pack_column(record.chain_id, name, columns[name]))
        if name == "msa":
            cell = pa.py_buffer(np.zeros(size, np.uint8))  # of pages nobody has touched
        ends = pa.py_buffer(np.array([0, cell.size], np.int64))
        arrays.append(pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, cell]))
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, arrow_schema(), options=options) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=arrow_schema()))
    return bytes(sink.getvalue())


def publish(folder: Path, shard: bytes) -> pa.Table:
    """A dataset of that shard, everything around it as it should be; its index."""
    published(folder / "sound", [RECORD])
    (row,) = Dataset.open(folder / "sound").index.to_pylist()
    start, digest = schema_end(memoryview(shard)), hashlib.sha256(shard).hexdigest()
    row |= {"shard": f"{digest}.arrow", "offset": start, "nbytes": len(shard) - start}
    row["checksum"] = xxhash.xxh3_64_intdigest(shard[start:])
    table = pa.Table.from_pylist([row], schema=Dataset.open(folder / "sound").index.schema)
    storage = open_storage(str(folder / "hostile"))
    storage.put(shard_key(row["shard"]), shard)
    entry = ShardEntry(row["shard"], digest, len(shard), 1)
    snapshot = write_snapshot(storage, table, [entry], parent=None, config={}, dropped=())
    (folder / "hostile" / "refs").mkdir()
    ref = {"digest": snapshot.digest, "name": "main", "updated_at": ""}
    (folder / "hostile" / "refs" / "main").write_text(json.dumps(ref))
    return table


def test_2_gib_of_zeros_in_a_shard_take_no_memory_and_are_named(tmp_path):
    bombed = bomb(RECORD, ZEROS, "zstd")
    assert len(bombed) < 200_000
    publish(tmp_path, bombed)
    with local_bucket() as bucket:
        address = bucket.fill(tmp_path)
        where = [f"{address}/sound", f"{address}/hostile"]
        done = subprocess.run(
            [sys.executable, "-c", READER, *where], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
    faults, grown = json.loads(done.stdout)
    shard = f"{hashlib.sha256(bombed).hexdigest()}.arrow"
    # its span, the whole shard, and the chain asked for
    assert [fault[2] for fault in faults] == ["bomb_A", None, "bomb_A"], faults
    assert all(fault[0] == "ShardCorrupt" and fault[1].endswith(shard) for fault in faults)
    assert grown < MOST


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_any_compression_by_arrow_is_refused_in_shards_indexes_and_joins(codec, tmp_path):
    """No honest file has it either, so nothing depends on how large it would become."""
    table = publish(tmp_path, bomb(RECORD, 1 << 16, codec))
    with pytest.raises(ShardCorrupt) as caught:  # columns are read by their place, not by Arrow
        join_chains(open_storage(str(tmp_path / "hostile")), table)
    assert caught.value.item == "bomb_A" and str(table["shard"][0]) in str(caught.value.path)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(ShardCorrupt, match="compressed by Arrow"):
        read_index(sink.getvalue(), "here")
    assert read_index(index_bytes(table), "here").equals(table)


def test_a_column_under_zstd_becomes_64_times_as_large_at_most():
    """Its dims allow 125 MB, and its payload of 4 KB would become that."""
    columns = encode_record(RECORD)
    dims = np.array([5_000, 40_000, 0, 0, 0, 0, 0, 0], np.int32).tobytes()
    packed = pa.Codec("zstd").compress(pa.py_buffer(np.zeros(125_000_000, np.uint8)), asbytes=True)
    columns["dims"] = PackedColumn(Codec.RAW, memoryview(dims), raw_nbytes=32)
    columns["msa"] = PackedColumn(
        Codec.MSA5, memoryview(packed), Compression.ZSTD, raw_nbytes=125_000_000
    )
    with pytest.raises(ShardCorrupt, match=f"{max_unpacked(len(packed))} possible"):
        ChainDecoder(columns, Origin("bomb_A", "here")).raw("msa")


def test_what_would_become_more_is_stored_without_zstd():
    zeros = memoryview(bytes(max_unpacked(0) + 1))
    plain = PackedColumn(Codec.MSA5, zeros, raw_nbytes=len(zeros))
    assert compressed(plain) is plain
    fits = PackedColumn(Codec.MSA5, zeros[:-1], raw_nbytes=len(zeros) - 1)
    assert compressed(fits).compression == Compression.ZSTD


@pytest.mark.parametrize(
    "lie",
    [
        {"nbytes": 1 << 40},
        {"offset": 1 << 62},
        {"offset": -8},
        {"num_res": 2**31 - 1},
        {"num_alignments": 2**31 - 1},
        {"num_deletions": 2**31 - 1},
        {"num_templates": 2**31 - 1},
        {"num_res": 0},
    ],
    ids=str,
)
def test_an_index_that_promises_more_than_its_shards_hold_is_refused(lie, tmp_path):
    base = published(tmp_path, [RECORD])
    dataset = Dataset.open(tmp_path)
    (row,) = dataset.index.to_pylist()
    table = pa.Table.from_pylist([row | lie], schema=dataset.index.schema)
    snapshot = write_snapshot(
        dataset.storage, table, list(base.manifest.shards), parent=None, config={}, dropped=()
    )
    with pytest.raises(ShardCorrupt, match="claims more") as caught:
        Dataset.open(tmp_path, snapshot.digest)
    assert caught.value.item == "bomb_A"


def test_a_server_that_sends_more_than_was_asked_for_is_hung_up_on(tmp_path):
    """Endless bodies too: what is read is bounded by the range."""
    (tmp_path / "shards").mkdir()

    class Generous(Service):
        root, faults, seen = tmp_path, [], []

        def answer(self, status, data):
            self.send_response(206)
            self.end_headers()
            self.close_connection = True
            try:
                for _ in range(1 << 20):
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                self.seen.append("hung up")

    with served(Generous) as url:
        storage = HttpStorage(f"{url}/v1/datasets/toy", first_wait=0.0)
        with pytest.raises(StoreError, match="sends more than"):
            storage.read_into("shards/x.arrow", 0, memoryview(bytearray(8)))
        storage.close()
        deadline = time.monotonic() + 30  # the server writes until its buffers are full
        while len(Generous.seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert Generous.seen[1:] == ["hung up"]


ATTEMPTS = {"read": 1500, "unchecked": 900, "arrow": 500, "index": 150, "manifest": 150, "ref": 90}
CAMPAIGN = Path(__file__).with_name("corruption.py")


@pytest.mark.slow
def test_damage_is_detected_or_harmless_and_never_kills(tmp_path):
    kinds = [f"{kind}={attempts}" for kind, attempts in ATTEMPTS.items()]
    command = [sys.executable, str(CAMPAIGN), str(tmp_path), "7", *kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"after {done.stdout}: {done.returncode}, {done.stderr[-2000:]}"
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kind: attempts for kind, attempts, _ in results} == ATTEMPTS
    for kind, attempts, detected in results:
        assert detected >= {"unchecked": 0.05}.get(kind, 0.6) * attempts, kind


def test_an_unknown_major_version_is_refused_and_older_minors_are_read():
    for version in ((2, 0), (0, 9), (1, 3), ("x",), (), None):
        with pytest.raises(SchemaMismatch):
            check_version(version, "here")
    for version in ((1, 0), (1, 1)):
        check_version(version, "here")


def test_files_of_the_next_major_version_are_refused(tmp_path):
    published(tmp_path, [random_record(1)])
    (manifest,) = tmp_path.glob("snapshots/*/manifest.json")
    text = manifest.read_bytes().replace(b'"version":[1,0]', b'"version":[2,0]')
    with pytest.raises(SchemaMismatch, match="upgrade evofeed"):
        Manifest.from_bytes(text, hashlib.sha256(text).hexdigest(), "here")
    for schema, read in (
        (arrow_schema(), lambda data: shard_index(pa.py_buffer(data), "x", "here")),
        (index_schema(), lambda data: read_index(data, "here")),
    ):
        metadata = dict(schema.metadata) | {b"evofeed.version": b"2.0"}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema.with_metadata(metadata)):
            pass
        with pytest.raises(SchemaMismatch, match="upgrade evofeed"):
            read(bytes(sink.getvalue()))


def test_other_arrow_files_are_no_shards():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("a", pa.int32())])):
        pass
    with pytest.raises(SchemaMismatch, match="not an evofeed shard"):
        shard_index(sink.getvalue(), "x", "here")

"""Damage of every kind to every file: a typed error that names the place, or no harm at all.

"No harm" means that what is read equals, bit for bit, what was written. The
process must not die: all attempts of a kind run in one child process per file
kind, whose exit code is looked at.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from store_records import assert_same, random_record

from evofeed.errors import SchemaMismatch, ShardCorrupt, StoreError
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.index import index_schema, read_index
from evofeed.store.layout import arrow_schema, check_version
from evofeed.store.manifest import Manifest
from evofeed.store.shard import shard_index

ATTEMPTS = {
    "shard": 6000,
    "unchecked": 3000,
    "arrow": 1500,
    "index": 800,
    "manifest": 400,
    "ref": 300,
}


def damage(data: bytes, rng: random.Random) -> bytes:
    """One fault: a flipped bit, a wild byte, a cut, or two swapped stretches."""
    wrong = bytearray(data)
    kind = rng.choice(("flip", "flip", "byte", "cut", "swap", "zero"))
    at = rng.randrange(len(wrong))
    if kind == "flip":
        wrong[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        wrong[at] = rng.randrange(256)
    elif kind == "cut":
        del wrong[at:]
    elif kind == "zero":
        wrong[at : at + 64] = bytes(len(wrong[at : at + 64]))
    else:
        size = rng.randrange(1, 200)
        other = rng.randrange(len(wrong))
        one, two = bytes(wrong[at : at + size]), bytes(wrong[other : other + size])
        wrong[at : at + len(two)] = two
        wrong[other : other + len(one)] = one
    return bytes(wrong)


def write(folder: Path) -> list:
    records = [
        random_record(s, num_res=30 + s, num_alignments=20, num_templates=2) for s in range(4)
    ]
    writer = DatasetWriter(str(folder))
    for record in records:
        writer.add(record)
    writer.commit()
    return records


def attempt_shard(folder, records, rng):
    """Reads through the index: every chain is right, or is named in an error."""
    (path,) = (folder / "shards").iterdir()
    good = path.read_bytes()
    path.write_bytes(damage(good, rng))
    hurt = 0
    dataset = Dataset.open(folder)
    for record in records:
        try:
            assert_same(dataset[record.chain_id], record)
        except ShardCorrupt as error:
            assert error.item == record.chain_id and path.name in str(error)
            hurt += 1
    path.write_bytes(good)
    return hurt


def attempt_unchecked(folder, records, rng):
    """The compiled decoders on wrong bytes, checksums off: any values, but no crash."""
    dataset = Dataset.open(folder)
    row = rng.randrange(len(records))
    L, N, _, T = dataset.spans.dims[row].tolist()
    good = dataset.spans.read_span(row)
    bad = np.frombuffer(damage(good.tobytes(), rng).ljust(len(good), b"\0"), np.uint8).copy()
    dataset.spans.read_span = lambda row, out=None, verify=True: bad
    out = {
        "msa": np.empty([N, L], np.uint8),
        "deletion_matrix": np.empty([N, L], np.int32),
        "template_aatype": np.empty([T, L], np.uint8),
        "template_all_atom_positions": np.empty([T, L, 37, 3], np.float32),
        "template_all_atom_mask": np.empty([T, L, 37], np.uint8),
        "all_atom_positions": np.empty([L, 37, 3], np.float32),
        "all_atom_mask": np.empty([L, 37], np.uint8),
        "hhblits_profile_counts": np.empty([L, 22], np.int32),
    }
    try:
        dataset.read_into(row, out, verify=False)
    except (ShardCorrupt, ValueError):
        return 1
    return 0


def attempt_arrow(folder, records, rng):
    """A shard opened as Arrow without knowing its hash."""
    (path,) = (folder / "shards").iterdir()
    good = path.read_bytes()
    wrong = damage(good, rng)
    try:
        table = shard_index(pa.py_buffer(wrong), path.name, "here")
    except (ShardCorrupt, SchemaMismatch):
        return 1
    checked = ("chain_id", "num_res", "num_alignments", "column_offsets")
    right = shard_index(pa.py_buffer(good), path.name, "here")
    assert table.select(checked).equals(right.select(checked))
    return 0


def attempt_file(folder, records, rng, pattern):
    """A small file of the catalogue: opening fails by name, or everything is as it was."""
    path = sorted(folder.glob(pattern))[0]
    good = path.read_bytes()
    path.write_bytes(damage(good, rng))
    try:
        dataset = Dataset.open(folder)
        for record in records:
            assert_same(dataset[record.chain_id], record)
        return 0
    except StoreError as error:
        assert error.path
        return 1
    finally:
        path.write_bytes(good)


KINDS = {
    "shard": attempt_shard,
    "unchecked": attempt_unchecked,
    "arrow": attempt_arrow,
    "index": lambda *args: attempt_file(*args, "snapshots/*/index.arrow"),
    "manifest": lambda *args: attempt_file(*args, "snapshots/*/manifest.json"),
    "ref": lambda *args: attempt_file(*args, "refs/main"),
}


def campaign(kind: str, folder: str, seed: int, report: str) -> None:
    records = write(Path(folder))
    rng = random.Random(seed)
    hurt = sum(bool(KINDS[kind](Path(folder), records, rng)) for _ in range(ATTEMPTS[kind]))
    Path(report).write_text(json.dumps({"attempts": ATTEMPTS[kind], "detected": hurt}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(ATTEMPTS))
def test_damage_is_detected_or_harmless_and_never_kills(kind, tmp_path):
    assert sum(ATTEMPTS.values()) >= 10_000
    report = tmp_path / "report.json"
    # fork: the child has the parent's checked and compiled modules.
    child = multiprocessing.get_context("fork").Process(
        target=campaign, args=(kind, str(tmp_path / "data"), 7, str(report))
    )
    child.start()
    child.join()
    assert child.exitcode == 0, f"the process died with {child.exitcode}"
    counts = json.loads(report.read_text())
    assert counts["attempts"] == ATTEMPTS[kind]
    if kind != "unchecked":
        assert counts["detected"] >= 0.6 * counts["attempts"]


def test_an_unknown_major_version_is_refused_and_older_minors_are_read():
    for version in ((2, 0), (0, 9), (1, 1), ("x",), (), None):
        with pytest.raises(SchemaMismatch):
            check_version(version, "here")
    check_version((1, 0), "here")


def test_files_of_the_next_major_version_are_refused(tmp_path):
    write(tmp_path)
    (manifest,) = tmp_path.glob("snapshots/*/manifest.json")
    text = manifest.read_bytes().replace(b'"version":[1,0]', b'"version":[2,0]')
    import hashlib

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
    with pytest.raises(SchemaMismatch, match="no evofeed shard"):
        shard_index(sink.getvalue(), "x", "here")

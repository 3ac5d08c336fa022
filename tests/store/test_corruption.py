"""Damaged files give typed errors, unknown versions are refused, and nothing kills the process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.store.records import published, random_record

from evofeed.base.errors import SchemaMismatch
from evofeed.store.index import index_schema, read_index
from evofeed.store.layout import arrow_schema, check_version
from evofeed.store.manifest import Manifest
from evofeed.store.shard import shard_index

ATTEMPTS = {"read": 1500, "unchecked": 900, "arrow": 500, "index": 150, "manifest": 150, "ref": 90}
CAMPAIGN = Path(__file__).with_name("corruption.py")


@pytest.mark.slow
def test_damage_is_detected_or_harmless_and_never_kills(tmp_path):
    kinds = [f"{kind}={attempts}" for kind, attempts in ATTEMPTS.items()]
    command = [sys.executable, str(CAMPAIGN), str(tmp_path), "7", *kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"after {done.stdout}: {done.returncode}, {done.stderr[-2000:]}"
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kind: attempts for kind, attempts, _ in found} == ATTEMPTS
    for kind, attempts, detected in found:
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
    with pytest.raises(SchemaMismatch, match="no evofeed shard"):
        shard_index(sink.getvalue(), "x", "here")

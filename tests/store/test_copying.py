"""Copies of a snapshot have its digest."""

from __future__ import annotations

import pytest
from tests.store.records import assert_same, flip, published, random_record

from evofeed.base.errors import RefConflict, ShardCorrupt
from evofeed.store import Dataset, copy_dataset

RECORDS = [random_record(seed, num_res=40, num_alignments=60) for seed in range(4)]


@pytest.fixture
def source(tmp_path):
    about = {"cluster_sizes": {"chain2_A": 5}, "config": {"a": 1}}
    published(tmp_path / "source", RECORDS, shard_nbytes=1, **about)
    return tmp_path / "source"


def check(folder):
    dataset = Dataset.open(folder)
    assert dataset.verify(deep=True) == [] and len(dataset) == 4
    for record in RECORDS:
        assert_same(dataset[record.chain_id], record)
    assert dataset.index["cluster_size"].to_pylist() == [-1, -1, 5, -1]
    return dataset


def test_a_plain_copy_keeps_the_digest_and_fetches_only_what_is_new(source, tmp_path):
    target = tmp_path / "target"
    copied = copy_dataset(source, target)
    assert copied.digest == Dataset.open(source).digest == check(target).digest
    times = {path: path.stat().st_mtime_ns for path in (target / "shards").iterdir()}
    copy_dataset(source, target)
    assert times == {path: path.stat().st_mtime_ns for path in (target / "shards").iterdir()}


def test_damage_and_foreign_refs_stop_a_copy(source, tmp_path):
    target = str(tmp_path / "target")
    published(target, [random_record(9)])
    with pytest.raises(RefConflict):
        copy_dataset(source, target)
    flip(min((source / "shards").iterdir()), 50)
    with pytest.raises(ShardCorrupt, match="sha256"):
        copy_dataset(source, tmp_path / "fresh")

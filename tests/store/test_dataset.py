"""Writing, committing, opening and reading a dataset on disk."""

from __future__ import annotations

import numpy as np
import pytest
from tests.store.records import assert_same, flip, published, random_record

from evofeed.store import Dataset, DatasetWriter, ShardEntry, write_shard


def test_the_same_records_in_any_order_give_the_same_digest(tmp_path):
    records = [random_record(seed) for seed in range(4)]
    one = published(tmp_path / "a", records)
    two = published(tmp_path / "b", records[::-1])
    assert one.digest == two.digest
    assert len(Dataset.open(tmp_path / "b")) == 4


def test_shards_written_anywhere_are_committed_together(tmp_path):
    records = [random_record(seed) for seed in range(6)]
    entries = [write_shard(str(tmp_path), records[:3]), write_shard(str(tmp_path), records[3:])]
    assert entries[0] == write_shard(str(tmp_path), records[:3])
    writer = DatasetWriter(str(tmp_path))
    for entry in entries:
        writer.add_shard(ShardEntry.from_dict(entry.to_dict()))
    writer.commit(config={"max_msa_rows": 5}, dropped=[{"chain_id": "bad_A", "reason": "no MSA"}])
    dataset = Dataset.open(f"file://{tmp_path}")
    assert dataset.manifest.config == {"max_msa_rows": 5}
    assert dataset.manifest.dropped[0]["reason"] == "no MSA"
    for record in records:
        assert_same(dataset[record.chain_id], record)


def test_the_index_says_where_and_what_each_chain_is(tmp_path):
    record = random_record(5)
    published(tmp_path, [record, random_record(6)])
    row = Dataset.open(tmp_path).index.to_pylist()[0]
    assert row["chain_id"] == record.chain_id and row["num_res"] == record.num_res
    assert row["num_deletions"] == len(record.deletion_count)
    most = np.bincount(record.aatype).max() / record.num_res
    assert row["max_aa_fraction"] == pytest.approx(most)
    assert row["cluster_size"] == -1 and row["has_structure"] and row["cost"] > 0
    assert (tmp_path / "shards" / row["shard"]).stat().st_size >= row["offset"] + row["nbytes"]


def test_one_id_is_not_taken_for_a_sequence_of_them(tmp_path):
    published(tmp_path, [random_record(1)])
    with pytest.raises(TypeError, match=r"read\(\['chain1_A'\]\)"):
        Dataset.open(tmp_path).read("chain1_A")


@pytest.mark.parametrize("damage", ["missing", "flipped", "another's"])
def test_a_part_is_only_a_shortcut_and_never_believed_blindly(tmp_path, damage):
    one, two = (write_shard(str(tmp_path), [random_record(seed)]) for seed in (1, 2))
    parts = {path.stem: path for path in (tmp_path / "parts").iterdir()}
    path = parts[one.sha256]
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        flip(path)
    else:
        path.write_bytes(parts[two.sha256].read_bytes())
    writer = DatasetWriter(str(tmp_path))
    writer.add_shard(one)
    snapshot = writer.commit()
    reference = published(tmp_path / "reference", [random_record(1)])
    assert snapshot.digest == reference.digest
    assert_same(Dataset.open(tmp_path)[0], random_record(1))


def test_a_closed_dataset_holds_no_file_and_opens_it_again(tmp_path):
    published(tmp_path, [random_record(1)])
    with Dataset.open(tmp_path) as dataset:
        assert_same(dataset[0], random_record(1))
        assert len(dataset.storage._open) == 1
    assert not dataset.storage._open
    assert_same(dataset[0], random_record(1))

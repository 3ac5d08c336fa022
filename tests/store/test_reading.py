"""A dataset on disk written, opened and read: whole records, and crops against them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.store.records import assert_same, flip, published, random_record

from evofeed.base.errors import ShardCorrupt
from evofeed.store import Dataset, DatasetWriter, ShardEntry, write_shard
from evofeed.store.codecs import pack_integers
from evofeed.store.decode import ChainDecoder, Origin, crop_features
from evofeed.store.layout import COLUMNS, Codec, Compression, PackedColumn

COLUMNS_READ = (
    "msa",
    "deletion_matrix",
    "aatype",
    "residue_index",
    "hhblits_profile_counts",
    "msa_source",
    "msa_species",
    "all_atom_positions",
    "all_atom_mask",
    "template_aatype",
    "template_sum_probs",
    "template_all_atom_positions",
    "template_all_atom_mask",
)
ALONG = {"template_aatype": 1, "template_all_atom_positions": 1, "template_all_atom_mask": 1}


@pytest.fixture(params=[False, True], ids=["packed", "zstd"])
def dataset(request, tmp_path):
    records = [random_record(seed, has_structure=seed % 4 > 0) for seed in range(4)]
    full = random_record(20)  # coordinates that do not fit fixed point, counts beyond u8
    noise = np.random.default_rng(1).normal(0, 9, full.all_atom_positions.shape)
    records.append(full.replace(all_atom_positions=noise.astype(np.float32)))
    records.append(random_record(21, num_res=200, num_alignments=400, num_templates=3))
    published(tmp_path, records, zstd=request.param)
    return Dataset.open(tmp_path)


def cropped(record, name, rows, window):
    """The feature of the whole record, cropped with numpy."""
    if name == "deletion_matrix":
        return record.deletion_matrix()[rows, window]
    if name == "msa":
        return record.msa[rows, window]
    value = np.asarray(getattr(record, name))
    if name.startswith("msa_"):
        return value[rows]
    if name == "template_sum_probs":
        return value
    return value[:, window] if name in ALONG else value[window]


def assert_cropped(dataset, chain, rows, window):
    """A crop that is read is that of the whole record, bit for bit."""
    record = dataset[chain]
    (read,) = dataset.read([chain], COLUMNS_READ, residues=window, rows=rows)
    has_structure = record.all_atom_positions is not None
    assert set(read) == {n for n in COLUMNS_READ if has_structure or not n.startswith("all_atom")}
    for name, array in read.items():
        right = cropped(record, name, rows, window)
        assert array.shape == right.shape, name
        if right.dtype.kind in "biuf":
            assert array.tobytes() == np.ascontiguousarray(right).tobytes(), name
        assert np.array_equal(array, right), name


def test_any_window_and_rows_are_those_of_the_record(dataset):
    rng = np.random.default_rng(0)
    for chain in range(len(dataset)):
        record = dataset[chain]
        for _ in range(3):
            start, stop = sorted(rng.integers(0, record.num_res + 1, 2).tolist())
            rows = rng.integers(0, record.num_alignments, rng.integers(0, 20))  # some of them twice
            assert_cropped(dataset, chain, rows, slice(start, stop))


def test_sparse_deletions_are_numbered_within_the_crop(dataset):
    record = dataset["chain21_A"]
    rows, window = [0, 7, 3], slice(20, 90)
    names = ("deletion_row", "deletion_column", "deletion_count")
    (read,) = dataset.read(["chain21_A"], names, residues=window, rows=rows)
    dense = np.zeros((3, 70), np.int32)
    dense[read["deletion_row"], read["deletion_column"]] = read["deletion_count"]
    assert np.array_equal(dense, record.deletion_matrix()[rows, window])


def test_wrong_calls_are_refused(dataset):
    with pytest.raises(ValueError, match="step 1"):
        dataset.read([1], residues=slice(0, 10, 2))
    with pytest.raises(IndexError):
        dataset.read([1], ("msa",), rows=[10**6])
    with pytest.raises(ValueError, match="no such columns"):
        dataset.read([1], ("nonsense",))


def test_a_deletion_outside_the_alignment_is_corrupt(dataset):
    row = dataset.row("chain21_A")
    sound = dataset.spans.decoder(row)
    columns = dict(sound.columns)
    wrong = sound.array("deletion_column").copy()
    wrong[0] = sound.dims["L"]
    columns["deletion_column"] = pack_integers(wrong)
    assert set(columns) == set(COLUMNS)
    with pytest.raises(ShardCorrupt, match="outside the alignment"):
        decoder = ChainDecoder(columns, Origin("chain21_A", "here"))
        crop_features(decoder, ["deletion_matrix"], slice(0, 1), np.arange(3))


def test_a_column_that_claims_more_than_the_chain_can_hold_is_not_unzipped(dataset):
    row = dataset.row("chain21_A")
    sound = dataset.spans.decoder(row)
    packed = PackedColumn(Codec.MSA5, memoryview(b"x"), Compression.ZSTD, raw_nbytes=1 << 40)
    decoder = ChainDecoder({**sound.columns, "msa": packed}, Origin("chain21_A", "here"))
    with pytest.raises(ShardCorrupt, match="bytes claimed"):
        decoder.msa_rows(np.arange(2))


def test_the_same_records_in_any_order_give_the_same_digest(tmp_path):
    records = [random_record(seed) for seed in range(4)]
    first = published(tmp_path / "a", records)
    second = published(tmp_path / "b", records[::-1])
    assert first.digest == second.digest
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
    max_fraction = np.bincount(record.aatype).max() / record.num_res
    assert row["max_aa_fraction"] == pytest.approx(max_fraction)
    assert row["cluster_size"] == -1 and row["has_structure"] and row["cost"] > 0
    assert (tmp_path / "shards" / row["shard"]).stat().st_size >= row["offset"] + row["nbytes"]


def test_one_id_is_not_taken_for_a_sequence_of_them(tmp_path):
    published(tmp_path, [random_record(1)])
    with pytest.raises(TypeError, match=r"read\(\['chain1_A'\]\)"):
        Dataset.open(tmp_path).read("chain1_A")


@pytest.mark.parametrize("damage", ["missing", "flipped", "another's"])
def test_a_part_is_only_a_shortcut_and_never_believed_blindly(tmp_path, damage):
    shard, other_shard = (write_shard(str(tmp_path), [random_record(seed)]) for seed in (1, 2))
    parts = {path.stem: path for path in (tmp_path / "parts").iterdir()}
    path = parts[shard.sha256]
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        flip(path)
    else:
        path.write_bytes(parts[other_shard.sha256].read_bytes())
    writer = DatasetWriter(str(tmp_path))
    writer.add_shard(shard)
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

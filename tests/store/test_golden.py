"""Every real chain of the golden pack: stored, read back, equal bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import golden_files
from tests.featurize.golden import openfold_record, sources
from tests.raw_features import from_raw_features
from tests.store.records import assert_same, published
from tests.store.test_reading import assert_cropped

from evofeed.featurize import to_openfold_raw
from evofeed.store import Dataset
from evofeed.store.decode import ChainDecoder, Place
from evofeed.store.encode import encode_record
from evofeed.store.layout import Codec


def with_alignment(path):
    with np.load(path) as arrays:
        return {"msa", "template_aatype", "deletion_matrix_int"} <= set(arrays.files)


RAW = [path for path in golden_files("data/golden/*.raw.npz") if with_alignment(path)]


@pytest.mark.parametrize("path", RAW, ids=lambda path: path.name)
def test_openfold_feature_dicts_survive_conversion_and_storage(path, tmp_path):
    compared = 0
    with np.load(path) as golden:
        published(tmp_path, [from_raw_features(golden, "recorded_A")])
        again = to_openfold_raw(Dataset.open(tmp_path)[0])
        for name in set(golden.files) & set(again):
            ours, theirs = again[name], golden[name]
            ours = ours.astype("S") if theirs.dtype.kind == "S" else ours
            assert np.array_equal(ours, theirs), name
            compared += 1
    assert compared >= 12


def test_real_chains_come_back_bit_for_bit_and_small_and_live_in_one_dataset(golden, tmp_path):
    assert RAW and sources()
    records = {chain_id: openfold_record(chain_id) for chain_id in sources()}
    for record in records.values():
        columns, zipped = encode_record(record), encode_record(record, zstd=True)
        for made in (columns, zipped):
            assert_same(ChainDecoder(made, Place(record.chain_id, "here")).record(), record)
        plain = {name for name, column in columns.items() if column.codec == Codec.RAW}
        empty = {name for name in plain if not len(columns[name].payload)}
        assert plain - empty <= {"dims", "aatype", "template_center", "template_sum_probs"}
    published(tmp_path, records.values())
    dataset = Dataset.open(tmp_path)
    assert len(dataset) == len(records) and dataset.verify(deep=True) == []
    rng = np.random.default_rng(0)
    for chain_id, record in records.items():
        start, stop = sorted(rng.integers(0, record.num_res + 1, 2).tolist())
        rows = rng.permutation(record.num_alignments)[: rng.integers(0, 1152)]
        assert_cropped(dataset, chain_id, rows, slice(start, stop))

"""Every real chain of the golden pack: stored, read back, equal bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import golden_files, golden_folder
from tests.store.records import assert_same, published
from tests.store.test_reading import assert_cropped

from evofeed.featurize import FeaturizeConfig, discover, featurize_chain, to_openfold_raw
from evofeed.store import Dataset
from evofeed.store.convert import convert
from evofeed.store.decode import ChainDecoder, Place
from evofeed.store.encode import encode_record
from evofeed.store.layout import Codec


def sources():
    inputs = golden_folder("data") / "inputs"
    return discover(
        inputs / "alignments",
        structure_dir=inputs / "mmcif",
        template_mmcif_dir=inputs / "template_mmcif",
    )


def with_alignment(path):
    with np.load(path) as arrays:
        return {"msa", "template_aatype", "deletion_matrix_int"} <= set(arrays.files)


RAW = [path for path in golden_files("data/golden/*.raw.npz") if with_alignment(path)]


def test_the_pack_was_found(golden):
    assert RAW and sources()


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.chain_id)
def test_real_chains_come_back_bit_for_bit_and_small(source):
    record = featurize_chain(source, FeaturizeConfig.openfold())
    columns = encode_record(record)
    assert_same(ChainDecoder(columns, Place(record.chain_id, "here")).record(), record)
    zipped = encode_record(record, zstd=True)
    assert_same(ChainDecoder(zipped, Place(record.chain_id, "here")).record(), record)
    plain = {name for name, column in columns.items() if column.codec == Codec.RAW}
    empty = {name for name in plain if not len(columns[name].payload)}
    assert plain - empty <= {"dims", "aatype", "template_center", "template_sum_probs"}


@pytest.mark.parametrize("path", RAW, ids=lambda path: path.name)
def test_openfold_feature_dicts_survive_conversion_and_storage(path, tmp_path):
    convert([path], str(tmp_path))
    again = to_openfold_raw(Dataset.open(tmp_path)[0])
    compared = 0
    with np.load(path) as golden:
        for name in set(golden.files) & set(again):
            ours, theirs = again[name], golden[name]
            ours = ours.astype("S") if theirs.dtype.kind == "S" else ours
            assert np.array_equal(ours, theirs), name
            compared += 1
    assert compared >= 12


def test_all_real_chains_live_in_one_dataset(golden, tmp_path):
    published(
        tmp_path, (featurize_chain(source, FeaturizeConfig.openfold()) for source in sources())
    )
    dataset = Dataset.open(tmp_path)
    assert len(dataset) == len(sources()) and dataset.verify(deep=True) == []
    rng = np.random.default_rng(0)
    for chain_id in dataset:
        record = dataset[chain_id]
        start, stop = sorted(rng.integers(0, record.num_res + 1, 2).tolist())
        rows = rng.permutation(record.num_alignments)[: rng.integers(0, 1152)]
        assert_cropped(dataset, chain_id, rows, slice(start, stop))

"""Every real chain of the golden pack: stored, read back, equal bit for bit."""

from __future__ import annotations

import numpy as np
from tests.featurize.golden import openfold_record, sources
from tests.store.records import assert_same, published
from tests.store.test_reading import assert_cropped

from evofeed.store import Dataset
from evofeed.store.decode import ChainDecoder, Origin
from evofeed.store.encode import encode_record
from evofeed.store.layout import Codec


def test_real_chains_come_back_bit_for_bit_and_small_and_live_in_one_dataset(golden, tmp_path):
    records = {chain_id: openfold_record(chain_id) for chain_id in sources()}
    assert records
    for record in records.values():
        columns, zipped = encode_record(record), encode_record(record, zstd=True)
        for encoded in (columns, zipped):
            assert_same(ChainDecoder(encoded, Origin(record.chain_id, "here")).record(), record)
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

"""The bytes themselves: a committed shard that must never be written or read otherwise.

`data/tiny.arrow` was written by format 1.0. If the first test fails, what this
code writes has changed: a new minor version, or a mistake. If the second fails,
old datasets cannot be read any more.

    python -m tests.store.test_format      writes the file again
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
from tests.store.records import assert_same, tiny_record

from evofeed.store.decode import ChainDecoder, Place
from evofeed.store.encode import encode_record
from evofeed.store.layout import COLUMNS, HEADER_NBYTES, arrow_schema, unpack_column
from evofeed.store.shard import shard_bytes, shard_index

TINY = Path(__file__).with_name("data") / "tiny.arrow"
SHA256 = "856fe83ca119fe42d40754119e581093e99e7a5aaba9c7eebe2033dbdb310549"


def written() -> bytes:
    other = tiny_record(chain_id="1abc_B", all_atom_positions=None, all_atom_mask=None)
    records = {record.chain_id: encode_record(record) for record in (tiny_record(), other)}
    return bytes(shard_bytes(records))


def test_the_same_records_still_give_the_very_same_bytes():
    assert hashlib.sha256(TINY.read_bytes()).hexdigest() == SHA256
    assert written() == TINY.read_bytes()


def test_the_committed_shard_is_still_read_as_it_was_meant():
    data = TINY.read_bytes()
    (first, second) = shard_index(pa.py_buffer(data), "tiny", "here").to_pylist()
    for row in (first, second):
        columns = {}
        for name, start in zip(COLUMNS, row["column_offsets"][:-1], strict=True):
            at = memoryview(data)[row["offset"] + start :]
            columns[name] = unpack_column(at, row["chain_id"], name, "here")
        record = ChainDecoder(columns, Place(row["chain_id"], "here")).record()
        bare = {"all_atom_positions": None, "all_atom_mask": None} if row is second else {}
        assert_same(record, tiny_record(chain_id=row["chain_id"], **bare))


def test_any_arrow_reader_opens_a_shard_and_finds_aligned_columns():
    data = pa.py_buffer(TINY.read_bytes())
    with pa.ipc.open_file(data) as reader:
        assert reader.num_record_batches == 2
        assert reader.schema.equals(arrow_schema())
        table = reader.read_all()
        assert table["chain_id"].to_pylist() == ["1abc_A", "1abc_B"]
        # Row 0 of the MSA: the query A C X = 0, 4, 20 in five bits each, from the lowest.
        msa = table["msa"][0].as_py()[HEADER_NBYTES:]
        assert int.from_bytes(msa[:8], "little") == 0 | 4 << 5 | 20 << 10
        batch = reader.get_batch(1)
        for name in COLUMNS:
            buffer = batch.column(name).buffers()[2]
            assert (buffer.address - data.address) % 8 == 0


if __name__ == "__main__":
    TINY.write_bytes(written())
    print(hashlib.sha256(TINY.read_bytes()).hexdigest())

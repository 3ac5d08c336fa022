"""The bytes themselves: each codec exactly, a committed shard never written or read otherwise.

`data/tiny.arrow` was written by format 1.0. If the first test fails, what this
code writes has changed: a new minor version, or a mistake. If the second fails,
old datasets cannot be read any more.

    python -m tests.store.test_format      writes the file again
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.records import assert_same, random_atoms, random_record, tiny_record

from evofeed.store.atoms import pack_mask, pack_positions, unpack_mask, unpack_positions
from evofeed.store.codecs import pack_strings, unpack_strings
from evofeed.store.decode import ChainDecoder, Origin
from evofeed.store.encode import encode_record
from evofeed.store.layout import (
    COLUMNS,
    HEADER_NBYTES,
    Codec,
    Compression,
    arrow_schema,
    unpack_column,
)
from evofeed.store.msa_codec import (
    pack_rows,
    row_nbytes,
    stored_order,
    unpack_rows,
    unpack_rows_compiled,
)
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
            cell = memoryview(data)[row["offset"] + start :]
            columns[name] = unpack_column(cell, row["chain_id"], name, "here")
        record = ChainDecoder(columns, Origin(row["chain_id"], "here")).record()
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


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_any_record_comes_back(seed, num_res, rows, templates):
    record = random_record(
        seed, num_res=num_res, num_alignments=rows, num_templates=templates,
        has_structure=seed % 3 > 0,
    )  # fmt: skip
    columns = encode_record(record, zstd=seed % 2 == 1)
    assert_same(ChainDecoder(columns, Origin(record.chain_id, "here")).record(), record)
    packed = np.frombuffer(pack_rows(record.msa), np.uint8).reshape(rows, row_nbytes(num_res))
    for unpack in (unpack_rows, unpack_rows_compiled):
        assert np.array_equal(unpack(packed, num_res), record.msa)


def test_stored_order_is_a_fixed_permutation_behind_the_query():
    order = stored_order("1abc_A", 1000)
    assert order[0] == 0 and np.array_equal(np.sort(order), np.arange(1000))
    assert order[:6].tolist() == [0, 957, 563, 673, 483, 330]
    assert not np.array_equal(order, stored_order("1abc_B", 1000))


def test_texts_survive_odd_ones_and_more_than_a_byte_of_them():
    texts = [str(number) for number in range(70_000)]
    odd = ["", "HUMAN", "\ud800", "HUMAN"]
    for some in (odd, *(texts[:n] for n in (0, 1, 2, 256, 257, 70_000))):
        assert list(unpack_strings(pack_strings(some), len(some))) == some


def test_a_code_that_names_no_text_is_refused():
    column = pack_strings(["a", "b", "a"])
    *rest, last = bytes(column.payload)
    assert last == 0
    for wrong in (2, 255):  # one past the last, and any
        bad = dataclasses.replace(column, payload=memoryview(bytes([*rest, wrong])))
        with pytest.raises(ValueError, match="not that of a text"):
            unpack_strings(bad, 3)


def test_coordinates_come_back_bit_for_bit_and_small():
    positions, mask = random_atoms(np.random.default_rng(0), [30])
    assert np.array_equal(unpack_mask(pack_mask(mask), len(mask)), mask)
    center = np.random.default_rng(1).normal(0, 100, [len(mask), 3]).astype(np.float32)
    moved = (positions - center[:, None]) * mask[..., None] + np.float32(0)
    for subtracted, array in ((None, positions), (center, moved)):
        payload = pack_positions(array, mask, subtracted)
        assert payload is not None and len(payload) < 0.3 * array.nbytes
        assert unpack_positions(payload, mask, subtracted).tobytes() == array.tobytes()


@pytest.mark.parametrize("odd", [-0.0, np.nan, np.inf, 1e9, 0.12345, 16777.217, -3e-8])
def test_a_few_odd_coordinates_are_kept_as_exceptions(odd):
    positions, mask = random_atoms(np.random.default_rng(3), [30])
    mask[5, 7] = mask[6, 0] = 1
    positions[5, 7, 1] = positions[6, 0, 2] = odd
    positions[7, np.flatnonzero(mask[7] == 0)[0]] = 1.5  # a position where the mask says none
    payload = pack_positions(positions, mask, None)
    assert payload is not None
    assert unpack_positions(payload, mask, None).tobytes() == positions.tobytes()


def test_a_usual_chain_is_packed_in_every_column_whatever_the_layout_of_its_arrays():
    record = random_record(2, num_res=70, num_alignments=200)
    columns, zipped = encode_record(record), encode_record(record, zstd=True)
    plain = {name for name, column in columns.items() if column.codec == Codec.RAW}
    assert plain == {"dims", "aatype", "template_center", "template_sum_probs"}
    assert zipped["msa"].compression == Compression.ZSTD
    sizes = [sum(len(c.payload) for c in encoded.values()) for encoded in (columns, zipped)]
    assert sizes[1] < sizes[0]
    odd = dataclasses.replace(record, msa=np.asfortranarray(record.msa))
    ours = {k: bytes(v.payload) for k, v in columns.items()}
    assert ours == {k: bytes(v.payload) for k, v in encode_record(odd).items()}
    for encoded in (columns, zipped):
        assert_same(ChainDecoder(encoded, Origin(record.chain_id, "here")).record(), record)


def test_odd_numbers_survive_plain_where_nothing_else_fits():
    record = random_record(9, num_res=50, num_alignments=50)
    count = record.deletion_count.copy()
    count[0], count[1] = 2**31 - 1, -5
    noise = np.random.default_rng(0).normal(0, 1, record.all_atom_positions.shape)
    record = record.replace(
        all_atom_positions=noise.astype(np.float32),  # of full precision
        deletion_row=record.deletion_row[::-1].copy(),  # not sorted
        deletion_column=record.deletion_column[::-1].copy(),
        deletion_count=count,
        hhblits_profile_counts=record.hhblits_profile_counts - 10**6,
        residue_index=record.residue_index[::-1].copy(),
    )
    columns = encode_record(record)
    for name in ("all_atom_positions", "deletion_row"):
        assert columns[name].codec == Codec.RAW
    assert_same(ChainDecoder(columns, Origin(record.chain_id, "here")).record(), record)


if __name__ == "__main__":
    TINY.write_bytes(written())
    print(hashlib.sha256(TINY.read_bytes()).hexdigest())

"""The bytes themselves: a committed shard that must never be written or read otherwise.

`data/tiny.arrow` was written by format 1.0. If the first test fails, what this
code writes has changed: a new minor version, or a mistake. If the second fails,
old datasets cannot be read any more.

    python tests/store/test_format.py      writes the file again
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from evofeed.protein.chain_record import ChainRecord
from evofeed.store.decode import ChainDecoder, Place
from evofeed.store.encode import encode_record
from evofeed.store.layout import COLUMNS, HEADER_NBYTES, arrow_schema, unpack_column
from evofeed.store.shard import shard_bytes, shard_index

TINY = Path(__file__).with_name("data") / "tiny.arrow"
SHA256 = "856fe83ca119fe42d40754119e581093e99e7a5aaba9c7eebe2033dbdb310549"


def tiny_record() -> ChainRecord:
    """Three residues, three rows, one template, written out by hand."""
    positions = np.zeros([3, 37, 3], np.float32)
    positions[0, :2] = [[1.5, -2.25, 3.125], [2.001, -1.999, 0.0]]
    positions[2, 1] = [-100.007, 250.5, 0.001]
    mask = (positions != 0).any(-1).astype(np.uint8)
    center = np.array([[0.5, -0.25, 10.125]], np.float32)
    moved = (positions - center) * mask[..., None] + np.float32(0)
    return ChainRecord(
        chain_id="1abc_A",
        sequence="ACX",
        description="three residues",
        aatype=np.array([0, 4, 20], np.uint8),
        residue_index=np.arange(3, dtype=np.int32),
        msa=np.array([[0, 4, 20], [0, 21, 19], [21, 4, 1]], np.uint8),
        deletion_row=np.array([1, 2], np.int32),
        deletion_column=np.array([2, 0], np.int32),
        deletion_count=np.array([3, 300], np.int32),
        msa_source=np.array([0, 0, 1], np.uint8),
        msa_sources=("bfd_uniclust_hits.a3m", "uniref90_hits.sto"),
        msa_species=("", "HUMAN", ""),
        hhblits_profile_counts=np.arange(66, dtype=np.int32).reshape(3, 22),
        all_atom_positions=positions,
        all_atom_mask=mask,
        template_aatype=np.array([[0, 21, 20]], np.uint8),
        template_all_atom_positions=moved[None],
        template_all_atom_mask=mask[None],
        template_center=center,
        template_sum_probs=np.array([97.5], np.float32),
        template_domain_names=("2xyz_B",),
        template_sequence=("A-X",),
        template_release_date=("2001-02-03",),
        resolution=1.9,
        release_date="2010-11-12",
        method="X-RAY DIFFRACTION",
        inputs={"1abc.cif": "00" * 32},
        config_digest="11" * 32,
        dropped=("template 3zzz_C: too short",),
    )


def written() -> bytes:
    record = tiny_record()
    plain = {record.chain_id: encode_record(record)}
    other = record.replace(chain_id="1abc_B", all_atom_positions=None, all_atom_mask=None)
    plain[other.chain_id] = encode_record(other)
    return bytes(shard_bytes(plain))


def test_the_same_records_still_give_the_very_same_bytes():
    assert hashlib.sha256(TINY.read_bytes()).hexdigest() == SHA256
    assert written() == TINY.read_bytes()


def test_the_committed_shard_is_still_read_as_it_was_meant():
    from tests.store.records import assert_same

    data = TINY.read_bytes()
    (first, second) = shard_index(pa.py_buffer(data), "tiny", "here").to_pylist()
    for row in (first, second):
        columns = {}
        for name, start in zip(COLUMNS, row["column_offsets"][:-1], strict=True):
            at = memoryview(data)[row["offset"] + start :]
            columns[name] = unpack_column(at, row["chain_id"], name, "here")
        record = ChainDecoder(columns, Place(row["chain_id"], "here")).record()
        expected = tiny_record().replace(chain_id=row["chain_id"])
        if row is second:
            expected = expected.replace(all_atom_positions=None, all_atom_mask=None)
        assert_same(record, expected)


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

"""The compiled crops against the plain decoders, and packed reads against both."""

from __future__ import annotations

import numpy as np
import pytest
from tests.store.records import random_record

from evofeed.errors import ShardCorrupt
from evofeed.store import Dataset, DatasetWriter, reading
from evofeed.store.atoms import unpack_mask, unpack_positions
from evofeed.store.crop_atoms import angstroms
from evofeed.store.dataset import crop_features
from evofeed.store.layout import Codec
from evofeed.store.msa_codec import unpack_rows
from evofeed.store.words import (
    BLOCK,
    compiled,
    spread,
    spread_plainly,
    store_atom,
    unpack_block,
    unpack_block_plainly,
)

BUFFERS = {
    "msa": ("RW", np.uint8),
    "deletion_matrix": ("RW", np.uint16),
    "aatype": ("W", np.int64),
    "residue_index": ("W", np.int32),
    "hhblits_profile_counts": ("W22", np.float32),
    "msa_source": ("R", np.uint8),
    "all_atom_positions": ("WA3", np.float32),
    "all_atom_mask": ("WA", np.float32),
    "template_aatype": ("TW", np.uint8),
    "template_sum_probs": ("T", np.float32),
    "template_all_atom_positions": ("TWA3", np.float32),
    "template_all_atom_mask": ("TWA", np.uint8),
}


def buffers(rows, width, templates):
    sizes = {"R": rows, "W": width, "A": 37, "T": templates, "2": 22, "3": 3}
    made = {}
    for name, (dims, dtype) in BUFFERS.items():
        shape = [sizes[dim] for dim in dims.replace("22", "2")]
        made[name] = np.full(shape, 77, dtype)  # stale values must not shine through
    return made


def with_exceptions(record):
    """Some coordinates of every template and of the structure are not what fixed point says."""
    rng = np.random.default_rng(3)
    changed = {}
    for name in ("all_atom", "template_all_atom"):
        positions = getattr(record, f"{name}_positions").copy()
        mask = getattr(record, f"{name}_mask") * (rng.random(positions.shape[:-1]) < 0.02)
        positions[..., 1] += np.float32(0.0004) * mask
        changed[f"{name}_positions"] = positions
        assert mask.reshape(-1, record.num_res * 37).any(1).all()
    return record.replace(**changed)


@pytest.fixture(params=[False, True], ids=["packed", "zstd"])
def dataset(request, tmp_path):
    writer = DatasetWriter(str(tmp_path), zstd=request.param)
    for seed in range(12):
        record = random_record(seed, has_structure=seed % 4 > 0)
        writer.add(record)
    full = random_record(20)  # coordinates that do not fit fixed point, counts beyond u8
    noise = np.random.default_rng(1).normal(0, 9, full.all_atom_positions.shape)
    writer.add(full.replace(all_atom_positions=noise.astype(np.float32)))
    writer.add(random_record(21, num_res=200, num_alignments=400, num_templates=3))
    writer.add(with_exceptions(random_record(22, num_res=50, num_templates=4)))
    writer.commit()
    return Dataset.open(tmp_path)


@pytest.mark.parametrize("verify", [True, False])
def test_any_window_and_rows_equal_the_plain_read(dataset, verify):
    rng = np.random.default_rng(0)
    for chain in range(len(dataset)):
        record = dataset[chain]
        for _ in range(3):
            start, stop = sorted(rng.integers(0, record.num_res + 1, 2))
            rows = rng.integers(0, record.num_alignments, rng.integers(0, 20))
            chosen = rng.permutation(record.num_templates)[: rng.integers(0, 5)]
            out = buffers(len(rows), stop - start, len(chosen))
            window = (int(start), int(stop))
            dataset.read_into(
                chain, out, residues=window, rows=rows, templates=chosen, verify=verify
            )
            columns = [*BUFFERS, "deletion_row", "msa_species"]
            decoder = dataset.spans.decoder(chain, dataset.spans.read_span(chain))
            plain = crop_features(decoder, columns, slice(start, stop), rows)
            (read,) = dataset.read([chain], columns, residues=slice(start, stop), rows=rows)
            assert list(read) == list(plain)
            for name, array in read.items():
                assert array.dtype == plain[name].dtype, name
                assert array.tobytes() == plain[name].tobytes(), name
            for name, array in out.items():
                expected = plain.get(name, np.zeros_like(array))
                if name.startswith("template"):
                    expected = expected[chosen]
                assert array.shape == expected.shape, name
                assert np.array_equal(array, expected.astype(array.dtype)), name


COMPILED = {"msa", "deletion_matrix", "template_aatype"} | {
    f"{prefix}_{what}"
    for prefix in ("all_atom", "template_all_atom")
    for what in ("mask", "positions")
}


def test_what_is_compiled_is_left_to_the_plain_decoders_only_where_it_must(dataset, monkeypatch):
    """The plain way gives the same bytes, so only this tells that the quick one is taken."""
    plainly, left = reading._plainly, set()

    def seen(decoder, out, names, *args):
        left.update((chain, name) for name in names if name in COMPILED)
        plainly(decoder, out, names, *args)

    monkeypatch.setattr(reading, "_plainly", seen)
    must = set()
    for chain in range(len(dataset)):
        record = dataset[chain]
        dataset.read_into(
            chain, buffers(record.num_alignments, record.num_res, record.num_templates)
        )
        fits = record.all_atom_positions is not None and record.chain_id != "chain20_A"
        must |= {(chain, name) for name in COMPILED if name.startswith("all") and not fits}
    assert left == must


def test_a_whole_chain_needs_no_window(dataset):
    record = dataset[3]
    out = buffers(record.num_alignments, record.num_res, record.num_templates)
    dataset.read_into(3, out)
    assert np.array_equal(out["msa"], record.msa)
    assert np.array_equal(out["deletion_matrix"], record.deletion_matrix())
    got, expected = out["template_all_atom_positions"], record.template_all_atom_positions
    assert got.tobytes() == expected.tobytes()


def test_wrong_calls_are_refused(dataset):
    record = dataset[1]
    for bad in (
        {"residues": (0, record.num_res + 1)},
        {"rows": [record.num_alignments]},
        {"rows": [-1]},
        {"templates": [record.num_templates]},
    ):
        counts = len(bad.get("rows", range(record.num_alignments))), record.num_res
        out = buffers(*counts, len(bad.get("templates", range(record.num_templates))))
        with pytest.raises(ValueError, match="the chain has"):
            dataset.read_into(1, out, **bad)
    with pytest.raises(ValueError, match="contiguous"):
        dataset.read_into(1, {"aatype": np.zeros(record.num_res + 1, np.uint8)})
    with pytest.raises(ValueError, match="fixed size"):
        dataset.read_into(1, {"deletion_row": np.zeros(3, np.int32)})


def test_a_count_too_large_for_the_buffer_is_refused(tmp_path):
    record = random_record(5, num_res=60, num_alignments=60)
    count = record.deletion_count.copy()
    count[3] = 300
    writer = DatasetWriter(str(tmp_path))
    writer.add(record.replace(deletion_count=count))
    writer.commit()
    small = np.zeros([60, 60], np.uint8)
    with pytest.raises(ValueError, match="does not fit"):
        Dataset.open(tmp_path).read_into(0, {"deletion_matrix": small})


def test_packed_columns_decode_with_the_reference_decoders(dataset):
    for chain in range(len(dataset)):
        record = dataset[chain]
        columns = ("msa_order", "msa", "template_all_atom_mask", "template_all_atom_positions")
        buffer = np.zeros(dataset.packed_nbytes(chain, columns) + 64, np.uint8)
        slices = dataset.read_packed(chain, columns, buffer.data)
        assert list(slices) == list(columns)
        part = {}
        for name, (offset, nbytes, _codec) in slices.items():
            assert offset % 8 == 0
            part[name] = buffer[offset : offset + nbytes].data
        assert slices["msa"].codec == Codec.MSA5
        stored = unpack_rows(part["msa"], record.num_alignments, record.num_res)
        order = np.frombuffer(
            part["msa_order"], np.uint8 if slices["msa_order"].codec == 2 else np.uint16
        )
        assert np.array_equal(stored, record.msa[order])
        residues = record.num_templates * record.num_res
        mask = unpack_mask(part["template_all_atom_mask"], residues)
        center = np.repeat(record.template_center, record.num_res, axis=0)
        positions = unpack_positions(part["template_all_atom_positions"], mask, center)
        assert positions.tobytes() == record.template_all_atom_positions.tobytes()


def test_a_packed_read_checks_its_columns(dataset):
    columns = ("aatype", "msa")
    with pytest.raises(ValueError, match="needed"):
        dataset.read_packed(0, columns, memoryview(bytearray(8)))
    key = dataset.storage.path(dataset.spans.key(13))
    data = bytearray(key.read_bytes())
    at = int(dataset.spans.offset[13] + dataset.spans.starts[13, 8]) + 30
    data[at] ^= 1
    key.write_bytes(data)
    fresh = Dataset.open(dataset.uri)
    buffer = memoryview(bytearray(fresh.packed_nbytes(13, columns)))
    with pytest.raises(ShardCorrupt, match="column msa"):
        fresh.read_packed(13, columns, buffer)
    fresh.read_packed(13, ("aatype",), buffer)


def test_thousandths_become_the_correctly_rounded_float():
    k = np.concatenate([np.arange(-60_000, 60_000), 2**24 - np.arange(1, 60_000)])
    ours = np.array([angstroms(int(value)) for value in k], np.float32)
    assert ours.tobytes() == (k.astype(np.float32) / np.float32(1000)).tobytes()


def test_spreading_five_bit_codes_is_the_same_on_every_processor():
    words = np.random.default_rng(0).integers(0, 2**64, 2000, dtype=np.uint64)
    for word in words:
        codes = [int(word) >> 5 * place & 31 for place in range(8)]
        assert int(spread(word)) == int(spread_plainly(word)) == int.from_bytes(codes, "little")


def test_a_block_of_codes_is_the_same_on_every_processor():
    rng = np.random.default_rng(1)
    span = rng.integers(0, 256, 400, dtype=np.uint8)
    bits = np.unpackbits(span, bitorder="little")
    for bit in rng.integers(0, 8 * (len(span) - BLOCK), 200).tolist():
        right = bits[bit : bit + 5 * BLOCK].reshape(BLOCK, 5) @ (1 << np.arange(5))
        for unpack in (unpack_block, unpack_block_plainly):
            out = np.full(BLOCK + 7, 99, np.uint8)
            unpack(span, bit, out, 5)
            assert np.array_equal(out[5 : 5 + BLOCK], right)
            assert (out[:5] == 99).all() and (out[5 + BLOCK :] == 99).all()


@compiled
def _one_atom(out, word, anchor, center):
    store_atom(out, 1, word, anchor, center)


def test_an_atom_in_one_vector_is_the_atom_in_three_numbers():
    rng = np.random.default_rng(2)
    for _ in range(2000):
        offset = rng.integers(-(2**15), 2**15, 4).astype(np.int16)
        k = rng.integers(-(2**23), 2**23, 3).astype(np.int32)
        center = rng.normal(0, 40, 3).astype(np.float32)
        out = np.full(6, 77, np.float32)
        _one_atom(out, offset.view(np.uint64)[0], tuple(k), tuple(center))
        right = (k + offset[:3]).astype(np.float32) / np.float32(1000) - center
        assert out.tobytes() == np.array([77, *right, 0, 77], np.float32).tobytes()


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int32, np.float32, np.float64])
def test_masks_come_in_any_dtype(dataset, dtype):
    record = dataset["chain21_A"]
    out = {
        "all_atom_mask": np.full([200, 37], 7, dtype),
        "all_atom_positions": np.full([200, 37, 3], 7, np.float32),
    }
    dataset.read_into("chain21_A", out)
    assert np.array_equal(out["all_atom_mask"], record.all_atom_mask.astype(dtype))
    assert out["all_atom_positions"].tobytes() == record.all_atom_positions.tobytes()

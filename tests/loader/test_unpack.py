"""Unpacked tensors equal the store's own decoders bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.loader.records import make_record, write_dataset

from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.features import ChainTensors
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.loader.unpack import unpack_chain
from evofeed.store import Dataset
from evofeed.store.inner import Origin

EVERYTHING = LoaderConfig(supervised=False, max_resolution=1e9, max_aa_fraction=1.0)


def load_chain(dataset: Dataset, row: int, templates: tuple[int, ...]) -> ChainTensors:
    location = ChainCatalog(dataset.index, 0, EVERYTHING).location(row)
    nbytes = slot_nbytes(location, True)
    slot = bytearray(nbytes)
    slab = read_chain(
        dataset.storage, ReadRequest(0, location, True, True, 0, nbytes), memoryview(slot)
    )
    return unpack_chain(
        *(slab, np.frombuffer(slot, np.uint8), location.sizes, templates),
        origin=Origin(location.chain_id, location.key),
        device=torch.device("cpu"),
        resolution=0.0,
        is_distillation=False,
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    shapes = [(1, 1, 0), (7, 300, 1), (64, 20, 5), (65, 33, 4), (13, 2, 2), (200, 400, 3)]
    records = [make_record(f"s{i}_A", *shape) for i, shape in enumerate(shapes)]
    bare = make_record("x_A", 9, 4, 0, structure=False)
    odd = make_record("y_A", 30, 9, 2)
    far = odd.all_atom_positions.copy()
    far[3] += np.float32(3e-4) * (far[3] != 0)  # not thousandths, but few: exceptions
    wild = make_record("z_A", 12, 8, 1)
    noise = wild.all_atom_positions * np.float32(1.2345)  # nothing fits: plain f32
    records += [bare, odd.replace(all_atom_positions=far), wild.replace(all_atom_positions=noise)]
    return write_dataset(tmp_path_factory.mktemp("unpack") / "d", records)


def test_every_field_of_every_chain_is_what_the_store_decodes(dataset: Dataset) -> None:
    for row in range(len(dataset)):
        record = dataset[row]
        chosen = tuple(reversed(range(record.num_templates)))
        chain = load_chain(dataset, row, chosen)
        pick = list(chosen)
        want = {
            "aatype": record.aatype,
            "residue_index": record.residue_index,
            "msa": record.msa,
            "deletions": record.deletion_matrix(),
            "profile_counts": record.hhblits_profile_counts,
            "template_aatype": record.template_aatype[pick],
            "template_positions": record.template_all_atom_positions[pick],
            "template_mask": record.template_all_atom_mask[pick],
            "template_sum_probs": record.template_sum_probs[pick],
        }
        for name, value in want.items():
            got = getattr(chain, name).numpy()
            assert got.shape == value.shape, (name, record.chain_id)
            if value.dtype == np.float32:
                bits = got.view(np.uint32), np.ascontiguousarray(value).view(np.uint32)
                zeros = (got == 0) & (value == 0)  # -0.0 of absent atoms may lose its sign
                assert np.array_equal(*(np.where(zeros, 0, b) for b in bits)), name
            else:
                assert np.array_equal(got, value), (name, record.chain_id)
        if record.all_atom_positions is None:
            assert chain.positions is None
            assert chain.mask is None
        else:
            assert chain.positions is not None
            assert chain.mask is not None
            np.testing.assert_array_equal(chain.positions.numpy(), record.all_atom_positions)
            np.testing.assert_array_equal(chain.mask.numpy(), record.all_atom_mask)

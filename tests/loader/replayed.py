"""Recordings through a dataset and the kernels: as stored, and with the recorded draws."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from tests.loader.made import poisoned_memory
from tests.loader.recorded import Case, RecordedDraws, load_case
from torch import Tensor

from evofeed.loader.batch import empty_batch
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.fused.filling import recycle_words
from evofeed.loader.fused.sample_kernels import SampleKernels, prepare
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.protein.chain_record import ChainRecord
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.convert import from_raw_features


def record_of(path: Path) -> ChainRecord:
    """The recorded chain as a record, as featurize would have stored it."""
    name = re.sub(r"(\.crop\d+)?\.seed\d+$", "", path.name.removesuffix(".draws.npz"))
    raw = dict(np.load(path.with_name(f"{name}.raw.npz")))
    return from_raw_features(raw, "recorded_A")


def replay_fused(
    path: Path, folder: Path, device: str
) -> tuple[Case, SampleKernels, dict[str, Tensor]]:
    """A recording through a dataset and the kernels: its draws instead of their own."""
    case = load_case(path)
    writer = DatasetWriter(str(folder))
    writer.add(record_of(path))
    writer.commit()
    dataset = Dataset.open(str(folder))
    config = case.config
    index = LoaderConfig(supervised=config.supervised, max_resolution=np.inf, max_aa_fraction=1.0)
    place = ChainCatalog(dataset.index, 0, index).place(0)
    nbytes = slot_nbytes(place, True)
    slot = bytearray(nbytes)
    request = ReadRequest(0, place, config.supervised, True, 0, nbytes)
    slab = read_chain(dataset.storage, request, memoryview(slot))
    draws = RecordedDraws(case.draws, config)
    rows = recycle_words(place.sizes[1], is_distillation=False, draws=draws, config=config)
    kernels, words = prepare(
        slab, place.sizes, case.crop, config, [rows], torch.device(device),
        key=0, number=0, batch=1, resolution=case.chain.resolution, is_distillation=False,
    )  # fmt: skip
    data = torch.frombuffer(slot, dtype=torch.uint8)[slab.start : slab.stop].to(device)
    on_device = torch.from_numpy(words).to(device)
    num_res = config.crop_size or case.chain.num_res
    with poisoned_memory():
        batch = empty_batch(
            config, num_res=num_res, batch_size=1, recycles=1, device=data.device, zeroed=False
        )
    kernels.unpack(on_device, data)
    counts = rows[0].row_count, rows[0].extra_count
    orders = draws.row_order(counts[0]), draws.extra_order(counts[1])
    most, pitch = kernels.sample.max_rows, kernels.sample.pitch
    for purpose, order in enumerate(orders, 1):
        order = order.to(device, torch.int32)
        kernels.order[purpose * most :][: len(order)] = order
        steps = torch.arange(len(order), device=device, dtype=torch.int32)
        kernels.rank[purpose * most :][order.long()] = steps
    kernels.gather(on_device, data)
    centres, length = rows[0].centres, case.chain.num_res
    kernels.mask(on_device, data, batch)
    masked_at = draws.mask_position(centres, length).to(device)
    codes, masked, where = (
        scratch[: centres * pitch].view(centres, pitch)[:, :length]
        for scratch in (kernels.codes, kernels.masked, kernels.masked_at)
    )
    new = draws.replacement(codes, case.chain.profile_counts).to(device, torch.uint8)
    masked[:] = torch.where(masked_at, new, codes)
    where[:] = masked_at.to(torch.uint8)
    kernels.features_of_recycles(on_device, data, batch)
    kernels.constant_features(on_device, data, batch)
    return case, kernels, batch

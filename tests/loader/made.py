"""Batches made in plain torch, and by the kernels into poisoned memory or with recorded draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tests.loader.recorded import Case, RecordedDraws, load_case, record_of
from torch import Tensor

from evofeed.loader.arena import Arena
from evofeed.loader.batch import empty_batch
from evofeed.loader.batch_maker import BatchMaker, FilledSlot
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.plan import BatchPlan, SamplePlan
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.store import Dataset, DatasetWriter

if TYPE_CHECKING:
    from evofeed.loader.fused.sample_kernels import SampleKernels

KNOWN = {
    "chi_angles_sin_cos": "chi_mask",
    "torsion_angles_sin_cos": "torsion_angles_mask",
    "alt_torsion_angles_sin_cos": "torsion_angles_mask",
    "template_torsion_angles_sin_cos": "template_torsion_angles_mask",
    "template_alt_torsion_angles_sin_cos": "template_torsion_angles_mask",
    "rigidgroups_gt_frames": "rigidgroups_gt_exists",
    "rigidgroups_alt_gt_frames": "rigidgroups_gt_exists",
    "backbone_rigid_tensor": "backbone_rigid_mask",
}
"""Masks of angles and frames: where they are 0, the values are undefined."""


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fills memory from `torch.empty` with NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def make_batch(
    dataset: Dataset,
    config: LoaderConfig,
    samples: tuple[SamplePlan, ...],
    recycles: int,
    *,
    fused: bool,
    device: str = "cpu",
) -> dict[str, Tensor]:
    catalog = ChainCatalog(dataset.index, 0, config)
    arena = Arena(32 << 20)
    maker = BatchMaker([catalog], config, arena, torch.device(device), fused=fused)
    slots, templates = [], config.max_templates > 0
    for sample in samples:
        location = catalog.location(sample.row)
        nbytes = slot_nbytes(location, templates) + maker.words_nbytes()
        offset = arena.allocate(nbytes)
        assert offset is not None
        request = ReadRequest(0, location, config.supervised, templates, offset, nbytes)
        memory = memoryview(arena.memory)[offset : offset + nbytes]
        slots.append(FilledSlot(sample, read_chain(dataset.storage, request, memory), offset))
        memory.release()
    plan = BatchPlan(0, 0, 0, recycles, samples)
    if not fused:
        return maker.make(plan, slots).tensors
    with poisoned_memory():
        batch = maker.make(plan, slots).hand_over()
    maker.close()
    return batch


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], limit: float = 2e-5) -> None:
    """Asserts equal integers and masks, and floats equal to rounding."""
    assert set(got) == set(want)
    for name, value in want.items():
        expected, actual = value.cpu(), got[name].cpu()
        if not expected.is_floating_point() or name.endswith(("mask", "exists")):
            assert torch.equal(actual, expected), name
            continue
        assert bool(torch.isfinite(actual).all()), name
        if name in KNOWN:
            is_known = want[KNOWN[name]].cpu() == 1
            expected, actual = expected[is_known], actual[is_known]
        torch.testing.assert_close(
            actual, expected, rtol=1e-5, atol=limit, msg=lambda text, name=name: f"{name}: {text}"
        )


def replay_fused(
    path: Path, folder: Path, device: str
) -> tuple[Case, SampleKernels, dict[str, Tensor]]:
    """Replays a recording through a dataset and the kernels, with the recorded draws."""
    from evofeed.loader.fused.filling import recycle_words
    from evofeed.loader.fused.sample_kernels import prepare

    case = load_case(path)
    writer = DatasetWriter(str(folder))
    writer.add(record_of(path))
    writer.commit()
    dataset = Dataset.open(str(folder))
    config = case.config
    index = LoaderConfig(supervised=config.supervised, max_resolution=np.inf, max_aa_fraction=1.0)
    location = ChainCatalog(dataset.index, 0, index).location(0)
    nbytes = slot_nbytes(location, True)
    slot = bytearray(nbytes)
    request = ReadRequest(0, location, config.supervised, True, 0, nbytes)
    slab = read_chain(dataset.storage, request, memoryview(slot))
    draws = RecordedDraws(case.draws, config)
    rows = recycle_words(location.sizes[1], is_distillation=False, draws=draws, config=config)
    kernels, words = prepare(
        slab, location.sizes, case.crop, config, [rows], torch.device(device),
        key=0, number=0, batch=1, resolution=case.chain.resolution, is_distillation=False,
    )  # fmt: skip
    data = torch.frombuffer(slot, dtype=torch.uint8)[slab.start : slab.stop].to(device)
    words_on_device = torch.from_numpy(words).to(device)
    num_res = config.crop_size or case.chain.num_res
    with poisoned_memory():
        batch = empty_batch(
            config, num_res=num_res, batch_size=1, recycles=1, device=data.device, zeroed=False
        )
    kernels.unpack(words_on_device, data)
    counts = rows.row_count, rows.extra_count
    orders = draws.row_order(counts[0]), draws.extra_order(counts[1])
    max_rows, pitch = kernels.sample["max_rows"], kernels.sample["pitch"]
    for purpose, order in enumerate(orders, 1):
        order = order.to(device, torch.int32)
        kernels.order[purpose * max_rows :][: len(order)] = order
        steps = torch.arange(len(order), device=device, dtype=torch.int32)
        kernels.rank[purpose * max_rows :][order.long()] = steps
    kernels.gather(words_on_device, data)
    centres, length = rows.centres, case.chain.num_res
    kernels.mask(words_on_device, data, batch)
    masked_at = draws.mask_position(centres, length).to(device)
    codes, masked, where = (
        scratch[: centres * pitch].view(centres, pitch)[:, :length]
        for scratch in (kernels.codes, kernels.masked, kernels.is_masked)
    )
    new = draws.replacement(codes, case.chain.profile_counts).to(device, torch.uint8)
    masked[:] = torch.where(masked_at, new, codes)
    where[:] = masked_at.to(torch.uint8)
    kernels.features_of_recycles(words_on_device, data, batch)
    kernels.constant_features(words_on_device, data, batch)
    return case, kernels, batch

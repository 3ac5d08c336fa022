"""One sample made twice: in plain torch, and by the kernels into poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from evofeed.loader.arena import Arena
from evofeed.loader.batch_maker import BatchMaker, FilledSlot
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.plan import BatchPlan, SamplePlan
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.store import Dataset

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
"""Angles and frames mean something where these masks are 1; elsewhere they are noise over zero."""


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory from `torch.empty` is full of NaN, or the largest integer."""
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
    slots = []
    for sample in samples:
        place = catalog.place(sample.row)
        nbytes = slot_nbytes(place, config.max_templates > 0) + maker.words_nbytes(place)
        offset = arena.allocate(nbytes)
        assert offset is not None
        request = ReadRequest(0, place, config.supervised, config.max_templates > 0, offset, nbytes)
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
    """Integers and masks equal, floats to rounding."""
    assert set(got) == set(want)
    for name, value in want.items():
        here, there = value.cpu(), got[name].cpu()
        if not here.is_floating_point() or name.endswith(("mask", "exists")):
            assert torch.equal(there, here), name
            continue
        assert bool(torch.isfinite(there).all()), name
        if name in KNOWN:
            known = want[KNOWN[name]].cpu() == 1
            here, there = here[known], there[known]
        torch.testing.assert_close(
            there, here, rtol=1e-5, atol=limit, msg=lambda text, name=name: f"{name}: {text}"
        )

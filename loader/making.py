"""Slots to batches on the device: the copy, the unpacking and the features, in one stream.

On a GPU everything here only *queues* work on a side stream; a sample's slot may
be reused once its copy's event has passed, and a batch is ready once its own event
has. On a CPU the work is done on the spot.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evofeed.loader import draws
from evofeed.loader.arena import Arena
from evofeed.loader.batch import empty_batch, put
from evofeed.loader.catalog import Catalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.featurise import constant_features, recycle_features
from evofeed.loader.plan import BatchPlan, SamplePlan
from evofeed.loader.reading import Slab
from evofeed.loader.unpack import unpack_chain

__all__ = ["BatchMaker", "FilledSlot", "ReadyBatch"]


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """A sample whose bytes lie in the arena."""

    sample: SamplePlan
    slab: Slab
    offset: int


@dataclass(slots=True)
class ReadyBatch:
    """A batch, and the event after which its tensors hold what they should."""

    plan: BatchPlan
    tensors: dict[str, Tensor]
    event: torch.cuda.Event | None
    nbytes: int
    host_seconds: float
    timing: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def hand_over(self) -> dict[str, Tensor]:
        """The tensors, safe to use on the caller's current stream."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.tensors["aatype"].device)
            stream.wait_event(self.event)
            for tensor in self.tensors.values():
                tensor.record_stream(stream)
        return self.tensors


class BatchMaker:
    """Makes batches out of filled slots."""

    def __init__(
        self, catalogs: Sequence[Catalog], config: LoaderConfig, arena: Arena, device: torch.device
    ) -> None:
        self._catalogs, self._config = catalogs, config
        self._arena, self._device = arena, device
        self._memory = torch.from_numpy(arena.array)
        self._copied: deque[tuple[torch.cuda.Event, int]] = deque()
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # Above the model's priority: a few short kernels that others wait for.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def make(self, plan: BatchPlan, slots: Sequence[FilledSlot]) -> ReadyBatch:
        """Queue all work for one batch; its slots are freed as their copies finish."""
        begun = time.perf_counter()
        with self._on_stream():
            started = self._mark(timing=True)
            tensors = empty_batch(
                self._config,
                num_res=self._config.crop_size or self._length(slots[0]),
                batch_size=len(slots),
                recycles=plan.recycles,
                device=self._device,
            )
            for number, slot in enumerate(slots):
                self._fill(tensors, number, plan.recycles, slot)
            event = self._mark(timing=True)
        nbytes = sum(slot.slab.stop - slot.slab.start for slot in slots)
        timing = (started, event) if started is not None and event is not None else None
        return ReadyBatch(plan, tensors, event, nbytes, time.perf_counter() - begun, timing)

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        if self._stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream)

    def _mark(self, *, timing: bool = False) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _length(self, slot: FilledSlot) -> int:
        return self._catalogs[slot.sample.dataset].sizes(slot.sample.row)[0]

    def _fill(
        self, tensors: dict[str, Tensor], number: int, recycles: int, slot: FilledSlot
    ) -> None:
        config, sample = self._config, slot.sample
        catalog = self._catalogs[sample.dataset]
        sizes = catalog.sizes(sample.row)
        crop = draws.draw_crop(config, sample.key, sizes[0], sizes[3])
        chain = unpack_chain(
            slot.slab,
            self._copy(slot),
            sizes,
            crop.templates,
            resolution=float(catalog.resolution[sample.row]),
            is_distillation=bool(catalog.is_distillation[sample.row]),
        )
        put(tensors, constant_features(chain, crop, config), number)
        scalars = {
            "seq_length": crop.length,
            "resolution": chain.resolution,
            "is_distillation": float(chain.is_distillation),
            "use_clamped_fape": draws.use_clamped_fape(config, sample.key),
        }
        for name, value in scalars.items():
            tensors[name][number].fill_(value)
        for recycle in range(recycles):
            source = draws.RecycleDraws(config, sample.key, recycle, self._device)
            put(tensors, recycle_features(chain, crop, source, config), recycle, number)
        if self._stream is None:
            self._arena.free(slot.offset)

    def _copy(self, slot: FilledSlot) -> Tensor:
        """The slot's bytes on the device: one asynchronous copy."""
        start, stop = slot.offset + slot.slab.start, slot.offset + slot.slab.stop
        if self._stream is None:
            return self._memory[start:stop]
        data = torch.empty(stop - start, dtype=torch.uint8, device=self._device)
        data.copy_(self._memory[start:stop], non_blocking=True)
        event = self._mark()
        assert event is not None
        self._copied.append((event, slot.offset))
        return data

    def reclaim(self, *, wait: bool = False) -> None:
        """Free the slots whose copies are done; with `wait`, at least one."""
        while self._copied and (wait or self._copied[0][0].query()):  # type: ignore[no-untyped-call]
            event, offset = self._copied.popleft()
            event.synchronize()
            self._arena.free(offset)
            wait = False

    def close(self) -> None:
        """Wait until the device reads nothing more from the arena."""
        while self._copied:
            self.reclaim(wait=True)
        self._memory = torch.empty(0, dtype=torch.uint8)

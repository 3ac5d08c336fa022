"""Slots to batches on the device: copy, unpacking and features on one stream.

On a GPU everything here only *queues* work on a side stream; a batch is ready, and its
samples' slots may be reused, once its event has passed. On a CPU the work is synchronous.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from evofeed.base.errors import LoaderError
from evofeed.loader.arena import Arena
from evofeed.loader.batch import blocks_of, empty_batch, fill_sample
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import EntryConfig, LoaderConfig
from evofeed.loader.counter_rng import Purpose, stream_key
from evofeed.loader.draws import Crop, draw_crop, use_clamped_fape
from evofeed.loader.hooks import ChainSample, LoaderHooks
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.plan import BatchPlan, SamplePlan
from evofeed.loader.unpack import overflow_tensor, unpack_chain, unpack_sample
from evofeed.store import Dataset
from evofeed.store.inner import Origin

_TIMED: Final = 8
"""Device time is measured for one batch in this many: events cost host time too."""


def can_fuse(device: torch.device) -> bool:
    """True if Triton's kernels can run on the device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """A sample with its bytes in the arena."""

    sample: SamplePlan
    slab: Any
    """A `Slab`, or a `PackedSlab`."""
    offset: int


@dataclass(slots=True)
class ReadyBatch:
    """A batch, and the event after which its tensors are valid."""

    plan: BatchPlan
    tensors: dict[str, Any]
    event: torch.cuda.Event | None
    nbytes: int
    host_seconds: float
    blocks: Sequence[Tensor] = ()
    """One tensor for each block of memory that the tensors are views of."""
    started: torch.cuda.Event | None = None
    """When the device began; only of timed batches."""

    def hand_over(self) -> dict[str, Any]:
        """The tensors, safe to use on the caller's current stream."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.blocks[0].device)
            stream.wait_event(self.event)
            for tensor in self.blocks:
                tensor.record_stream(stream)
        return self.tensors


def _blocks_on(device: torch.device, value: Any) -> list[Tensor]:
    """One tensor per allocation on the device: recording hundreds takes a microsecond each."""
    tensors = (t for t in tree_leaves(value) if isinstance(t, Tensor))
    on_device = (t for t in tensors if t.device.type == device.type)
    return list({t.untyped_storage().data_ptr(): t for t in on_device}.values())


class BatchMaker:
    """Makes batches from filled slots.

    With Triton's kernels if `fused`; else, and always for complexes and entries, in plain torch.
    """

    def __init__(
        self,
        catalogs: Sequence[ChainCatalog],
        config: LoaderConfig,
        arena: Arena,
        device: torch.device,
        *,
        fused: bool,
        hooks: LoaderHooks | None = None,
        datasets: Sequence[Dataset] = (),
    ) -> None:
        self._hooks, self._datasets = hooks, datasets
        self._catalogs, self._config = catalogs, config
        self._arena, self._device = arena, device
        self._fused = fused and config.of_chains
        self._memory = torch.from_numpy(arena.array)
        self._copied: deque[tuple[torch.cuda.Event, list[int]]] = deque()
        self._num_made = 0
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # Priority above the model's: a few short kernels that the next step waits for.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def make(self, plan: BatchPlan, slots: Sequence[FilledSlot]) -> ReadyBatch:
        """Queues all work for one batch; its slots are freed once the work is done."""
        begun = time.perf_counter()
        timed = self._num_made % _TIMED == 0
        self._num_made += 1
        with self._on_stream():
            started = self._mark(timing=True) if timed else None
            if self._config.entries is not None:
                tensors, blocks = self._entries(slots, self._config.entries)
            elif self._config.assemblies is not None:
                tensors, blocks = self._complexes(plan, slots)
            else:
                tensors, blocks = self._chains(plan, slots)
            if self._hooks is not None:
                if self._hooks.transform is not None:
                    tensors = self._hooks.transform(tensors, self._generator(plan))
                blocks = _blocks_on(self._device, tensors)
            event = self._mark(timing=timed)
        if event is None:
            for slot in slots:
                self._arena.free(slot.offset)
        else:
            self._copied.append((event, [slot.offset for slot in slots]))
        nbytes = sum(slot.slab.stop - slot.slab.start for slot in slots)
        seconds = time.perf_counter() - begun
        return ReadyBatch(plan, tensors, event, nbytes, seconds, blocks, started)

    def _chains(
        self, plan: BatchPlan, slots: Sequence[FilledSlot]
    ) -> tuple[dict[str, Any], list[Tensor]]:
        """Features of chains, and a tensor of each block of memory."""
        tensors = empty_batch(
            self._config,
            num_res=self._config.crop_size or self._sizes(slots[0].sample)[0],
            batch_size=len(slots),
            recycles=plan.recycles,
            device=self._device,
            zeroed=not self._fused,  # the kernels write the padding too
        )
        fill = self._fill_fused if self._fused else self._fill
        chain_samples = [self._chain_sample(slot.sample) for slot in slots]
        for number, (slot, sample) in enumerate(zip(slots, chain_samples, strict=True)):
            fill(tensors, number, plan.recycles, slot, sample.crop)
        if self._hooks is not None and self._hooks.features is not None:
            num_res = tensors["aatype"].shape[-1]
            for name, value in self._hooks.stacked(chain_samples, num_res).items():
                if name in tensors:
                    raise LoaderError(f"feature {name} of hooks exists already; rename it")
                tensors[name] = value.to(self._device)
        return tensors, blocks_of(tensors)

    def _chain_sample(self, sample: SamplePlan) -> ChainSample:
        """The sample as passed to hooks, with its crop, the hooks' own if they have one."""
        catalog = self._catalogs[sample.dataset]
        num_res, _, _, num_templates = catalog.sizes(sample.row)
        chain_sample = ChainSample(
            chain_id=catalog.chain_id(sample.row) if self._hooks is not None else "",
            epoch=sample.epoch, position=sample.position, num_res=num_res,
            crop=draw_crop(self._config, sample.key, num_res, num_templates), key=sample.key,
            _row=lambda: catalog.index.slice(sample.row, 1).to_pylist()[0],
            _read=lambda chain_id: self._datasets[sample.dataset][chain_id],
        )  # fmt: skip
        if self._hooks is None:
            return chain_sample
        return replace(chain_sample, crop=self._hooks.cropped(chain_sample))

    def _generator(self, plan: BatchPlan) -> torch.Generator:
        generator = torch.Generator(self._device)
        return generator.manual_seed(stream_key(plan.samples[0].key, Purpose.HOOKS) >> 1)

    def _entries(
        self, slots: Sequence[FilledSlot], config: EntryConfig
    ) -> tuple[dict[str, Any], list[Tensor]]:
        from evofeed.loader.entries.batch import entry_batch

        unpacked = [self._unpacked(slot) for slot in slots]
        pairs = zip(unpacked, slots, strict=True)
        samples = [(tensors, slot.slab.metadata) for (tensors, _), slot in pairs]
        return entry_batch(samples, config), [block for _, blocks in unpacked for block in blocks]

    def _complexes(
        self, plan: BatchPlan, slots: Sequence[FilledSlot]
    ) -> tuple[dict[str, Any], list[Tensor]]:
        from evofeed.loader.assembly.batch import complex_batch
        from evofeed.loader.assembly.features import AssemblyTensors

        samples = [
            (AssemblyTensors(slot.slab.metadata, **self._unpacked(slot)[0]), slot.sample.key)
            for slot in slots
        ]
        tensors = complex_batch(samples, plan.recycles, self._config)
        return tensors, _blocks_on(self._device, tensors)

    def _unpacked(self, slot: FilledSlot) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        """Tensors of a packed sample, and the blocks of memory that they are views of."""
        if slot.slab.overflow:
            data = overflow_tensor(slot.slab).to(self._device)
        else:
            data = self._copy(slot, slot.slab.stop)
            # On a CPU these are the slot's own bytes, which will be overwritten.
            data = data.clone() if self._stream is None else data
        tensors, zeros = unpack_sample(slot.slab.layout, data)
        return tensors, (data, zeros)

    def _index_values(self, sample: SamplePlan) -> dict[str, Any]:
        """Features of a chain from its index row."""
        catalog = self._catalogs[sample.dataset]
        return {
            "resolution": float(catalog.resolution[sample.row]),
            "is_distillation": bool(catalog.is_distillation[sample.row]),
        }

    def _draws(self, sample: SamplePlan, recycles: int) -> list[RecycleDraws]:
        return [RecycleDraws(self._config, sample.key, r, self._device) for r in range(recycles)]

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

    def _sizes(self, sample: SamplePlan) -> tuple[int, int, int, int]:
        return self._catalogs[sample.dataset].sizes(sample.row)

    def _fill(
        self, tensors: dict[str, Tensor], number: int, recycles: int, slot: FilledSlot, crop: Crop
    ) -> None:
        config, sample = self._config, slot.sample
        catalog = self._catalogs[sample.dataset]
        data = self._arena.array[slot.offset : slot.offset + slot.slab.stop]
        chain = unpack_chain(
            *(slot.slab, data, self._sizes(sample), crop.templates),
            origin=Origin(catalog.chain_id(sample.row), catalog.uri),  # what an error names
            device=self._device,
            **self._index_values(sample),
        )
        fill_sample(
            *(tensors, number, chain, crop, self._draws(sample, recycles), config),
            use_clamped_fape=use_clamped_fape(config, sample.key),
        )

    def _fill_fused(
        self, tensors: dict[str, Tensor], number: int, recycles: int, slot: FilledSlot, crop: Crop
    ) -> None:
        from evofeed.loader.fused.filling import recycle_words
        from evofeed.loader.fused.sample_kernels import prepare

        config, sample = self._config, slot.sample
        sizes, values = self._sizes(sample), self._index_values(sample)
        recycle_sizes = [
            recycle_words(
                sizes[1], is_distillation=values["is_distillation"], draws=draws, config=config
            )
            for draws in self._draws(sample, recycles)
        ]
        kernels, words = prepare(
            *(slot.slab, sizes, crop, config, recycle_sizes, self._device),
            key=sample.key,
            number=number,
            batch=tensors["aatype"].shape[0],
            **values,
        )
        data, on_device = self._copy_with(slot, words)
        kernels.run(on_device, data, tensors)

    def _copy_with(self, slot: FilledSlot, words: np.ndarray) -> tuple[Tensor, Tensor]:
        """A slot's bytes followed by a sample's words, and the words, on the device."""
        start = slot.slab.stop + -slot.slab.stop % 64
        begin = slot.offset + start
        self._arena.array[begin : begin + words.nbytes].view(np.int64)[:] = words
        data = self._copy(slot, start + words.nbytes)
        return data, data[start - slot.slab.start :].view(torch.int64)

    def words_nbytes(self) -> int:
        """Bytes of a slot for a sample's words, in addition to those read into it."""
        if not self._fused:
            return 0
        from evofeed.loader.fused.filling import words_nbytes

        return words_nbytes(self._config)

    def _copy(self, slot: FilledSlot, end: int) -> Tensor:
        """The slot's bytes up to `end` on the device: one asynchronous copy."""
        start, stop = slot.offset + slot.slab.start, slot.offset + end
        if self._stream is None:
            return self._memory[start:stop]
        data = torch.empty(stop - start, dtype=torch.uint8, device=self._device)
        return data.copy_(self._memory[start:stop], non_blocking=True)

    def reclaim(self, *, wait: bool = False) -> bool:
        """Frees the slots of finished batches; with `wait`, of at least one.

        Returns:
            True if any slot was freed.
        """
        freed = False
        while self._copied and (wait or self._copied[0][0].query()):  # type: ignore[no-untyped-call]
            event, offsets = self._copied.popleft()
            event.synchronize()
            for offset in offsets:
                self._arena.free(offset)
            wait, freed = False, True
        return freed

    def close(self) -> None:
        """Waits until the device no longer reads from the arena."""
        while self._copied:
            self.reclaim(wait=True)
        self._memory = torch.empty(0, dtype=torch.uint8)

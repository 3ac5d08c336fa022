"""The feeder thread, which prepares batches ahead: plan, read, make, queue.

It holds the state of all pending reads, so a reader can die at any moment: its requests
are sent to the next one. Batches are delivered in the planned order, or, with
`in_order=False`, as they become ready within an optimiser step.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from evofeed.base.errors import AccessDenied, ChainRefused, EvofeedError, LoaderError, StoreError
from evofeed.loader.arena import Arena
from evofeed.loader.batch_maker import BatchMaker, FilledSlot
from evofeed.loader.catalog import ChainLocation
from evofeed.loader.config import LoaderConfig
from evofeed.loader.plan import BatchPlan, Planner, SamplePlan
from evofeed.loader.read_chain import ReadRequest, slot_nbytes
from evofeed.loader.reader_pool import Readers
from evofeed.loader.ready_queue import ReadyQueue
from evofeed.loader.stats import Stats

_LOG: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.1
_REFUSALS: Final = 4
"""Reads of a chain that a storage may refuse, by answering for others or denying access."""
_WARNING_SECONDS: Final = 60.0
"""Failed reads are logged at most this often."""


def sample_nbytes(location: Any, config: LoaderConfig) -> int:
    """Bytes of a slot for the sample at a location."""
    if config.of_chains:
        return slot_nbytes(location, config.max_templates > 0)
    return int(location.nbytes)


@dataclass(slots=True)
class _Sample:
    """A pending sample; `offset` is that of its slot, None while it has none."""

    plan: SamplePlan
    age: int
    request: ReadRequest | None = None
    requested: float = 0.0
    failures: int = 0
    failing_since: float = 0.0
    refusals: int = 0
    """Failures while the storage answered for another chain, or denied access."""
    offset: int | None = None
    slab: Any = None


@dataclass(slots=True, eq=False)
class _Batch:
    """A pending batch: its plan and the samples requested so far."""

    plan: BatchPlan
    samples: list[_Sample] = field(default_factory=list)

    def is_requested(self) -> bool:
        return len(self.samples) == len(self.plan.samples)

    def is_filled(self) -> bool:
        return self.is_requested() and all(sample.slab is not None for sample in self.samples)


class Feeder(threading.Thread):
    """Runs from construction to `stop()`; an error ends it and reaches the consumer."""

    def __init__(
        self,
        planner: Planner,
        batches: Iterator[BatchPlan],
        readers: Callable[[], Readers],
        arena: Arena,
        maker: BatchMaker,
        stats: Stats,
        *,
        prefetch: int,
        ready: int,
        in_order: bool,
    ) -> None:
        super().__init__(name="evofeed-feeder", daemon=True)
        self._planner, self._batches = planner, batches
        self._start_readers, self._arena, self._maker = readers, arena, maker
        self._stats, self._prefetch, self._in_order = stats, prefetch, in_order
        self._structure = planner.config.supervised
        self._templates = planner.config.max_templates > 0
        self.ready = ReadyQueue(ready)
        self._in_progress: deque[_Batch] = deque()
        self._requested: dict[int, _Sample] = {}
        self._unsent: list[ReadRequest] = []
        self._waiting_for_slot: list[_Sample] = []
        self._retries: list[tuple[float, _Sample]] = []
        self._last_success, self._last_warning = 0.0, -math.inf
        self._probes: dict[int, ChainLocation] = {}
        """Location of the chain read last, by dataset."""
        self._bad: set[tuple[int, int]] = set()
        """Chains with unreadable records, as dataset and row."""
        self._refused: dict[int, set[tuple[int, int]]] = {}
        """Chains without a sample, by the sample's key. It does not depend on other samples, so
        the stream of samples does not depend on timing."""
        self._reported: set[tuple[int, int]] = set()
        self._last_restart: tuple[BatchPlan, int] | None = None
        """The first batch of the last restart, and the number of excluded chains then."""
        self._number = 0
        self.busy_with = "starting"
        """The cause of a wait for the next batch, for statistics."""

    def stop(self) -> None:
        """Ends the thread and everything it started, and waits for them."""
        self.ready.close()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Prepares batches until stopped."""
        readers = None
        try:
            readers = self._start_readers()
            self._stats.follow(readers)
            while self.ready.wait_for_space():
                self._run_once(readers)
        except BaseException as error:
            self.ready.put(error)
        finally:
            if readers is not None:
                self._stats.follow(None)
                readers.close()
            self._maker.close()

    def _run_once(self, readers: Readers) -> None:
        self._maker.reclaim()
        filled = self._next_filled()
        if filled is not None:
            self._in_progress.remove(filled)
            self._deliver(filled)
        self._retry()
        while self._waiting_for_slot and self._request(self._waiting_for_slot[0]):
            self._waiting_for_slot.pop(0)
        self._request_ahead()
        if self._unsent:
            readers.submit(self._unsent)
            self._unsent = []
        if filled is not None:
            self.busy_with = "waking up"
        elif self._requested or self._retries:
            self.busy_with = "reading"
            for number, result in readers.poll(_POLL_SECONDS):
                self._handle_result(number, result)
        else:  # only space in the arena is missing
            self.busy_with = "room in shared memory"
            if not self._maker.reclaim(wait=True):
                self._restart()

    def _next_filled(self) -> _Batch | None:
        """The next batch once it is filled; out of order, any filled one of its optimiser step."""
        for batch in self._in_progress:
            head = self._in_progress[0]
            if (batch.plan.epoch, batch.plan.step) != (head.plan.epoch, head.plan.step):
                break
            if batch.is_filled():
                return batch
            if self._in_order:
                break
        return None

    def _request_ahead(self) -> None:
        """Requests samples of the next batches as far as prefetch and memory allow.

        While batches are ready, requests are sent together once half of the prefetched batches are
        used: waking a reader for each sample costs more than reading it.
        """
        limit = self._prefetch
        if len(self.ready) and len(self._in_progress) > self._prefetch // 2:
            limit = 0  # only the rest of the batch begun
        while not self._waiting_for_slot:
            batch = self._in_progress[-1] if self._in_progress else None
            if batch is None or batch.is_requested():
                if len(self._in_progress) >= limit:
                    return
                batch = _Batch(next(self._batches))
                self._in_progress.append(batch)
            plan = self._readable(batch.plan.samples[len(batch.samples)])
            sample = _Sample(plan, self._number)
            if not self._request(sample):
                return
            batch.samples.append(sample)

    def _readable(self, plan: SamplePlan) -> SamplePlan:
        chain = plan.dataset, plan.row
        if chain in self._bad or chain in self._refused.get(plan.key, ()):
            self._stats.substituted += 1
            return self._substitute(plan)
        return plan

    def _substitute(self, plan: SamplePlan) -> SamplePlan:
        bad = self._bad | self._refused.get(plan.key, set())
        try:
            return self._planner.substitute(plan, bad)
        except LoaderError as error:
            raise LoaderError(f"{error}; the last one: {self._stats.bad_chains[-1]}") from None

    def _request(self, sample: _Sample) -> bool:
        """Allocates a slot for the sample and requests it; False if the arena is full."""
        plan = sample.plan
        location = self._planner.catalogs[plan.dataset].location(plan.row)
        config = self._planner.config
        nbytes = sample_nbytes(location, config) + self._maker.words_nbytes()
        try:
            offset = self._arena.allocate(nbytes)
        except ValueError as error:
            raise LoaderError(str(error), item=location.chain_id) from None
        if offset is None:
            return False
        sample.offset, sample.requested = offset, time.perf_counter()
        self._submit(
            sample,
            ReadRequest(
                *(self._number, location, self._structure, self._templates, offset, nbytes),
                task=None if config.of_chains else (plan.key, config.entries or config),
            ),
        )
        return True

    def _submit(self, sample: _Sample, request: ReadRequest) -> None:
        sample.request = request
        self._requested[request.number] = sample
        self._number += 1
        self._unsent.append(request)

    def _retry(self) -> None:
        """Sends postponed reads again once they are due."""
        now = time.perf_counter()
        for due, sample in [retry for retry in self._retries if retry[0] <= now]:
            self._retries.remove((due, sample))
            assert sample.request is not None
            probe = self._probes.get(sample.plan.dataset)
            request = sample.request._replace(number=self._number, probe=probe)
            self._submit(sample, request)

    def _handle_result(self, number: int, result: Any) -> None:
        sample = self._requested.pop(number)
        assert sample.request is not None
        if not isinstance(result, EvofeedError):
            sample.slab = result
            self._last_success = time.perf_counter()
            self._probes[sample.plan.dataset] = sample.request.location
            self._stats.was_read(sample.request.location.chain_id, sample.requested, result.seconds)
            return
        transient = type(result) in (StoreError, ChainRefused, AccessDenied)
        if transient and self._postpone(sample, result):
            return
        assert sample.offset is not None
        self._arena.free(sample.offset)
        sample.offset = None
        self._exclude(sample, result)
        sample.plan = self._substitute(sample.plan)
        self._waiting_for_slot.append(sample)
        self._waiting_for_slot.sort(key=lambda sample: sample.age)

    def _postpone(self, sample: _Sample, error: EvofeedError) -> bool:
        """Postpones a read that the storage did not answer; False if the chain is given up.

        Raises:
            LoaderError: the outage lasted `outage_seconds`, or access is denied.
        """
        now = time.perf_counter()
        if not sample.failures:  # not the time of the request: the job may have been suspended
            sample.failing_since = now
        sample.failures += 1
        self._stats.retries += 1
        sample.refusals += isinstance(error, (ChainRefused, AccessDenied))
        if sample.refusals >= _REFUSALS:
            if isinstance(error, AccessDenied):  # waiting does not help
                hint = "then iterate again, or resume from the state: no batch is lost"
                raise LoaderError(f"access was denied: {error}; {hint}") from error
            return False
        patience = self._planner.config.outage_seconds
        remaining = max(self._last_success, sample.failing_since) + patience - now
        if remaining < 0:
            raise LoaderError(f"nothing could be read for {patience:g} s: {error}") from error
        if now - self._last_warning > _WARNING_SECONDS:
            self._last_warning = now
            _LOG.warning("a read failed and is tried again, for %d s at most: %s", remaining, error)
        delay = min(patience / 1800 * 2 ** (sample.failures - 1), 15.0)
        self._retries.append((now + delay, sample))
        return True

    def _num_excluded(self) -> int:
        return len(self._bad) + sum(map(len, self._refused.values()))

    def _restart(self) -> None:
        """Frees all slots and requests all samples again, because the arena is fragmented.

        Slots of substitutes are allocated after those of later samples and leave gaps. An empty
        arena has space for a batch if any arena of its size has.

        Raises:
            LoaderError: the next batch is larger than the arena.
        """
        plan = self._in_progress[0].plan
        if self._last_restart == (plan, self._num_excluded()):
            raise LoaderError(
                f"a batch of {len(plan.samples)} samples does not fit into the "
                f"{self._arena.nbytes:,} bytes of shared memory: raise arena_nbytes"
            )
        self._last_restart = plan, self._num_excluded()
        for batch in self._in_progress:
            for sample in batch.samples:
                if sample.offset is not None:
                    self._arena.free(sample.offset)
        self._batches = itertools.chain([batch.plan for batch in self._in_progress], self._batches)
        self._in_progress.clear()
        self._waiting_for_slot.clear()

    def _exclude(self, sample: _Sample, error: EvofeedError) -> None:
        self._stats.substituted += 1
        chain = sample.plan.dataset, sample.plan.row
        if isinstance(error, LoaderError):  # the chain may have a sample with another key
            self._refused.setdefault(sample.plan.key, set()).add(chain)
        else:
            self._bad.add(chain)
        if chain in self._reported:
            return
        self._reported.add(chain)
        self._stats.bad_chains.append(str(error))
        _LOG.warning("this chain cannot be read and is replaced: %s", error)
        limit = self._planner.config.max_bad_chains
        if len(self._reported) > limit:
            raise LoaderError(
                f"{len(self._reported)} chains cannot be read, more than max_bad_chains={limit}; "
                f"the last one: {error}"
            ) from error

    def _deliver(self, batch: _Batch) -> None:
        slots = []
        for sample in batch.samples:
            assert sample.slab is not None
            assert sample.offset is not None
            self._refused.pop(sample.plan.key, None)
            slots.append(FilledSlot(sample.plan, sample.slab, sample.offset))
        self.busy_with = "making"
        ready_batch = self._maker.make(batch.plan, slots)
        self._stats.batch_made(ready_batch, len(slots))
        self.ready.put(ready_batch)

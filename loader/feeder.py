"""The thread that keeps batches coming: plan, read, make, hand over.

It holds all state of what is under way, so a reader can die at any moment: what
was asked of it is asked of the next one. Batches leave in the planned order, or, if that is
allowed, as they come within an optimiser step.
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
"""Reads of one chain that a storage may refuse: while it answers for another, or for our rights."""
_REMIND_SECONDS: Final = 60.0
"""Reads that fail are logged at most so often."""


def sample_nbytes(location: Any, config: LoaderConfig) -> int:
    """Bytes a slot for the sample at a place must have."""
    if config.of_chains:
        return slot_nbytes(location, config.max_templates > 0)
    return int(location.nbytes)


@dataclass(slots=True)
class _Sample:
    """A sample under way; `offset` is its slot, None while it has none."""

    plan: SamplePlan
    age: int
    request: ReadRequest | None = None
    requested: float = 0.0
    failures: int = 0
    failing_since: float = 0.0
    refusals: int = 0
    """Failures while the storage answered for another chain, or denied us access."""
    offset: int | None = None
    slab: Any = None


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch under way: its plan and the samples asked for so far."""

    plan: BatchPlan
    samples: list[_Sample] = field(default_factory=list)

    def is_asked_for(self) -> bool:
        return len(self.samples) == len(self.plan.samples)

    def is_filled(self) -> bool:
        return self.is_asked_for() and all(sample.slab is not None for sample in self.samples)


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
        self._under_way: deque[_Batch] = deque()
        self._requested: dict[int, _Sample] = {}
        self._unsent: list[ReadRequest] = []
        self._unplaced: list[_Sample] = []
        self._retries: list[tuple[float, _Sample]] = []
        self._last_success, self._last_warning = 0.0, -math.inf
        self._probes: dict[int, ChainLocation] = {}
        """Of each dataset the chain that was read last."""
        self._bad: set[tuple[int, int]] = set()
        """Chains whose records cannot be read."""
        self._refused: dict[int, set[tuple[int, int]]] = {}
        """By a sample's key, chains of which there is no such sample. Which others found some, and
        when, has no part in it: the same samples come whatever the timing."""
        self._named: set[tuple[int, int]] = set()
        self._restarted: tuple[BatchPlan, int] | None = None
        """The batch that all was started over for last, and how many chains were bad then."""
        self._number = 0
        self.busy_with = "starting"
        """What the next batch is waiting for, in a word."""

    def stop(self) -> None:
        """End the thread and everything it started; returns when they are gone."""
        self.ready.close()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Feed until stopped."""
        readers = None
        try:
            readers = self._start_readers()
            self._stats.follow(readers)
            while self.ready.wait_for_room():
                self._round(readers)
        except BaseException as error:
            self.ready.put(error)
        finally:
            if readers is not None:
                self._stats.follow(None)
                readers.close()
            self._maker.close()

    def _round(self, readers: Readers) -> None:
        self._maker.reclaim()
        filled = self._next_filled()
        if filled is not None:
            self._under_way.remove(filled)
            self._deliver(filled)
        self._retry()
        while self._unplaced and self._request(self._unplaced[0]):  # substitutes, the oldest first
            self._unplaced.pop(0)
        self._ask()
        if self._unsent:
            readers.submit(self._unsent)
            self._unsent = []
        if filled is not None:
            self.busy_with = "waking up"
        elif self._requested or self._retries:
            self.busy_with = "reading"
            for number, answer in readers.poll(_POLL_SECONDS):
                self._answered(number, answer)
        else:  # nothing to wait for but room in the arena
            self.busy_with = "room in shared memory"
            if not self._maker.reclaim(wait=True):
                self._start_over()

    def _next_filled(self) -> _Batch | None:
        """The batch whose turn it is, if it is there; out of order, any of its optimiser step."""
        for batch in self._under_way:
            head = self._under_way[0]
            if (batch.plan.epoch, batch.plan.step) != (head.plan.epoch, head.plan.step):
                break
            if batch.is_filled():
                return batch
            if self._in_order:
                break
        return None

    def _ask(self) -> None:
        """Request samples of the next batches as far as prefetch and memory allow.

        While the consumer has enough, only once half of them have been used, and then all at
        once: a reader that is woken for each sample spends more on waking than on reading.
        """
        most = self._prefetch
        if len(self.ready) and len(self._under_way) > self._prefetch // 2:
            most = 0  # but what was begun is asked for to the end
        while not self._unplaced:
            batch = self._under_way[-1] if self._under_way else None
            if batch is None or batch.is_asked_for():
                if len(self._under_way) >= most:
                    return
                batch = _Batch(next(self._batches))
                self._under_way.append(batch)
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
        """Give the sample a slot and ask for it; False if there is no room."""
        plan = sample.plan
        location = self._planner.catalogs[plan.dataset].location(plan.row)
        config = self._planner.config
        nbytes = sample_nbytes(location, config) + self._maker.words_nbytes(location)
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
        """Ask again for what a storage would not give a while ago."""
        now = time.perf_counter()
        for due, sample in [one for one in self._retries if one[0] <= now]:
            self._retries.remove((due, sample))
            assert sample.request is not None
            probe = self._probes.get(sample.plan.dataset)
            request = sample.request._replace(number=self._number, probe=probe)
            self._submit(sample, request)

    def _answered(self, number: int, answer: Any) -> None:
        sample = self._requested.pop(number)
        assert sample.request is not None
        if not isinstance(answer, EvofeedError):
            sample.slab = answer
            self._last_success = time.perf_counter()
            self._probes[sample.plan.dataset] = sample.request.location
            self._stats.was_read(sample.request.location.chain_id, sample.requested, answer.seconds)
            return
        passing = type(answer) in (StoreError, ChainRefused, AccessDenied)
        if passing and self._may_pass(sample, answer):
            return
        assert sample.offset is not None
        self._arena.free(sample.offset)
        sample.offset = None
        self._quarantine(sample, answer)
        sample.plan = self._substitute(sample.plan)
        self._unplaced.append(sample)
        self._unplaced.sort(key=lambda one: one.age)

    def _may_pass(self, sample: _Sample, why: EvofeedError) -> bool:
        """Put a read off whose storage did not answer: an outage is no fault of the chain.

        Raises:
            LoaderError: nothing at all could be read for a long time, or we may not read.
        """
        now = time.perf_counter()
        if not sample.failures:  # when it was asked for says little: a job may have been suspended
            sample.failing_since = now
        sample.failures += 1
        self._stats.retries += 1
        sample.refusals += isinstance(why, (ChainRefused, AccessDenied))
        if sample.refusals >= _REFUSALS:
            if isinstance(why, AccessDenied):  # waiting does not help
                then = "then iterate again, or go on from the state: no batch is lost"
                raise LoaderError(f"access was denied: {why}; {then}") from why
            return False
        patience = self._planner.config.outage_seconds
        left = max(self._last_success, sample.failing_since) + patience - now
        if left < 0:
            raise LoaderError(f"nothing could be read for {patience:g} s: {why}") from why
        if now - self._last_warning > _REMIND_SECONDS:
            self._last_warning = now
            _LOG.warning("a read failed and is tried again, for %d s at most: %s", left, why)
        wait = min(patience / 1800 * 2 ** (sample.failures - 1), 15.0)
        self._retries.append((now + wait, sample))
        return True

    def _num_bad(self) -> int:
        return len(self._bad) + sum(map(len, self._refused.values()))

    def _start_over(self) -> None:
        """Let go of all that was read and ask for it again: the rest fits in nowhere between.

        Substitutes come after samples that are younger than they, and leave gaps behind. In their
        own order, in an empty arena, there is room for a batch, or there never is.

        Raises:
            LoaderError: the next batch is larger than the arena.
        """
        plan = self._under_way[0].plan
        if self._restarted == (plan, self._num_bad()):
            raise LoaderError(
                f"a batch of {len(plan.samples)} samples does not fit into the "
                f"{self._arena.nbytes:,} bytes of shared memory: raise arena_nbytes"
            )
        self._restarted = plan, self._num_bad()
        for batch in self._under_way:
            for sample in batch.samples:
                if sample.offset is not None:
                    self._arena.free(sample.offset)
        self._batches = itertools.chain([batch.plan for batch in self._under_way], self._batches)
        self._under_way.clear()
        self._unplaced.clear()

    def _quarantine(self, sample: _Sample, why: EvofeedError) -> None:
        self._stats.substituted += 1
        chain = sample.plan.dataset, sample.plan.row
        if isinstance(why, LoaderError):  # another draw may have a sample of it
            self._refused.setdefault(sample.plan.key, set()).add(chain)
        else:
            self._bad.add(chain)
        if chain in self._named:
            return
        self._named.add(chain)
        self._stats.bad_chains.append(str(why))
        _LOG.warning("this chain cannot be read and is replaced: %s", why)
        limit = self._planner.config.max_bad_chains
        if len(self._named) > limit:
            raise LoaderError(
                f"{len(self._named)} chains cannot be read, more than max_bad_chains={limit}; "
                f"the last one: {why}"
            ) from why

    def _deliver(self, batch: _Batch) -> None:
        slots = []
        for sample in batch.samples:
            assert sample.slab is not None
            assert sample.offset is not None
            self._refused.pop(sample.plan.key, None)
            slots.append(FilledSlot(sample.plan, sample.slab, sample.offset))
        self.busy_with = "making"
        made = self._maker.make(batch.plan, slots)
        self._stats.made(made, len(slots))
        self.ready.put(made)

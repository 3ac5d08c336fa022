"""`FeatureLoader`: batches of features on the device, in a `for` loop."""

from __future__ import annotations

import functools
import math
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from evofeed.base.errors import CannotResume, LoaderError
from evofeed.loader.arena import Arena, prefault
from evofeed.loader.batch_maker import BatchMaker, ReadyBatch, can_fuse
from evofeed.loader.config import LoaderConfig
from evofeed.loader.feeder import Feeder, sample_nbytes
from evofeed.loader.hooks import LoaderHooks
from evofeed.loader.mixture import Source, dataset_of, open_mixture, snapshot_of
from evofeed.loader.plan import BatchPlan, Planner
from evofeed.loader.reader_pool import ProcessReaders, Readers, ThreadReaders
from evofeed.loader.stats import Stats
from evofeed.store import Assemblies, Dataset, Entries

_STATE_VERSION: Final = 1
_MUST_MATCH: Final = {
    "snapshots": "open the dataset at that digest, Dataset.open(uri, digest)",
    "config": "make the LoaderConfig of that run",
    "weights": "give the datasets those shares",
    "hooks": "give the LoaderHooks of that name",
    "seed": "give that seed",
    "global_batch_size": "give LoaderConfig that number, and there may be more or fewer ranks",
}
"""Keys of a state that must equal the loader's to resume, with a hint for the error."""
_ARENA_NBYTES: Final = (64 << 20, 512 << 20)
"""Minimum and maximum of the default shared memory."""


class FeatureLoader:
    """Batches of AlphaFold2 features, made on the device, ahead of the training step.

    ::

        shards ─> reader process ─> shared memory ─> feeder thread ─> ready batches ─> your loop
                  ranged reads,     page-locked,     one copy and      `ready` of      one a step,
                  checked           packed bytes     eight kernels     them, on the    on the device
                                                     a sample          device

        loader = FeatureLoader(Dataset.open("data/"), LoaderConfig.initial_training())
        for epoch in range(2):
            for batch in loader:
                loss = train_step(openfold_batch(batch))
            torch.save(loader.state_dict(), "loader.pt")  # also exact in the middle of an epoch

    Iterating gives the rest of the current epoch, and then the next epochs:
    `for epoch in range(n): for batch in loader: ...`. A batch is `dict[str, Tensor]`;
    features of a recycle have the recycle as first axis. A batch of entries is the
    argument of `openfold3_batch`, `boltz_batch` or `protenix_batch`.
    Batches depend on the dataset, the configuration and the seed alone: not on ranks,
    threads, restarts or the device.

    Args:
        dataset: an opened dataset, or its `assemblies` or `entries`, or several with their shares
            of the mixture. With `config.assemblies` single chains are complexes of one.
        config: sizes and sampling rules.
        rank: of this process.
        world_size: number of ranks.
        seed: of all random draws.
        device: of the batches; None: the current GPU, or the CPU without one.
        prefetch: batches read ahead.
        num_threads: of the reader.
        reader: `process` (one subprocess, the default) or `thread` (in this process).
        ready: finished batches that may wait on the device; more are made when one is left.
        in_order: False delivers the batches of an optimiser step in the order they are ready; the
            samples of a step are the same. For slow storage and accumulated gradients.
        arena_nbytes: shared memory for prefetched samples; None: by the largest chain.
        fused: on a GPU, make features with Triton's kernels; False: in plain torch, which takes
            the CPU about ten milliseconds a sample to queue and gives the same integers.
        hooks: user-defined weights, crops, features and transforms; crops and features of chains.

    Raises:
        LoaderError: no chain passes the filters.
        ValueError: rank, world size and batch sizes are inconsistent, or shares are invalid.
    """

    def __init__(
        self,
        dataset: Source | Sequence[tuple[Source, float]],
        config: LoaderConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        device: str | torch.device | None = None,
        prefetch: int = 16,
        num_threads: int = 4,
        reader: str = "process",
        ready: int = 3,
        in_order: bool = True,
        arena_nbytes: int | None = None,
        fused: bool = True,
        hooks: LoaderHooks | None = None,
    ) -> None:
        if reader not in ("process", "thread"):
            raise ValueError(f"reader must be 'process' or 'thread', not {reader!r}")
        if min(prefetch, num_threads, ready) < 1:
            raise ValueError("prefetch, num_threads and ready must be at least 1")
        is_single = isinstance(dataset, Dataset | Assemblies | Entries)
        mixture: list[tuple[Source, float]] = [(dataset, 1.0)] if is_single else list(dataset)  # type: ignore[arg-type, list-item]
        self.config, self.seed, self._hooks = config, seed, hooks
        if hooks is not None:
            _check_hooks(hooks, config)
        self._datasets = [dataset_of(source) for source, _ in mixture]
        self._snapshots = [snapshot_of(source) for source, _ in mixture]
        self._catalogs = open_mixture(mixture, config)
        weights = [float(weight) for _, weight in mixture]
        if not (0 < sum(weights) < math.inf and min(weights) >= 0):
            raise ValueError(f"shares of datasets must be 0 or more, and not all 0: {weights}")
        self.planner = Planner(
            self._catalogs, weights, config, rank=rank, world_size=world_size, seed=seed,
            hooks=hooks,
        )  # fmt: skip
        self.device = _device(device)
        self._options: dict[str, Any] = {"prefetch": prefetch, "ready": ready, "in_order": in_order}
        self._reader, self._num_threads = reader, num_threads
        self._fused = fused and can_fuse(self.device)
        self._arena_nbytes = arena_nbytes or self._default_arena_nbytes()
        self._epoch, self._consumed = 0, 0
        self._ahead: set[int] = set()
        self._stats = Stats()
        self._feeder: Feeder | None = None
        self._arena: Arena | None = None
        self._finalizer: Any = None
        self._pid = 0

    def _default_arena_nbytes(self) -> int:
        largest = max(
            sample_nbytes(catalog.location(catalog.largest()), self.config)
            for catalog in self._catalogs
        )
        minimum, maximum = _ARENA_NBYTES
        batch = (self.config.batch_size + 1) * largest  # space for one wherever the ring begins
        return max(min(max(6 * largest, minimum), maximum), batch)

    def __len__(self) -> int:
        """Batches in an epoch of this rank."""
        return self.planner.batches_per_epoch

    @property
    def most_chains(self) -> int:
        """Number of chains of the largest eligible complex; 1 for datasets of chains."""
        return max(catalog.most_chains for catalog in self._catalogs)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; at the end of an epoch, the following one."""
        return self._epoch + (self._consumed >= self.planner.epoch_len)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Batches of the rest of the current epoch, or of the next epoch at its end."""
        if self.epoch > self._epoch:
            self._epoch, self._consumed = self.epoch, 0
        epoch = self._epoch
        while self._epoch == epoch and self._consumed < self.planner.epoch_len:
            yield self._next()

    def _next(self) -> dict[str, Any]:
        if self._feeder is not None and self._pid != os.getpid():
            self._forget()  # forked: the thread and the reader belong to the parent
        try:
            feeder = self._feeder or self._start()
            called = time.perf_counter()
            cause = "handing over" if len(feeder.ready) else feeder.busy_with
            batch = self._take(feeder)
            waited = time.perf_counter() - called
            tensors = batch.hand_over()
            self._advance(batch.plan)
        except BaseException:  # Ctrl-C too: the next iteration gets the undelivered batch
            self.close()
            raise
        self._stats.delivered(batch, waited, cause)
        feeder.ready.refill()  # after delivery: making the next batches would delay this one
        return tensors

    def _advance(self, plan: BatchPlan) -> None:
        """Advances the position past this batch, and past batches delivered before their turn."""
        if plan.epoch != self._epoch:
            self._epoch, self._consumed = plan.epoch, 0
        width = self.planner.width
        self._ahead.add(plan.consumed - width)
        while self._consumed in self._ahead:
            self._ahead.remove(self._consumed)
            self._consumed += width
        self._stats.out_of_order += bool(self._ahead)

    def _take(self, feeder: Feeder) -> ReadyBatch:
        while (item := feeder.ready.take(5.0)) is None:
            if not feeder.is_alive():
                raise LoaderError("the loader was closed while a batch was requested")
        if isinstance(item, BaseException):
            raise item
        return item

    def _start(self) -> Feeder:
        arena = Arena(self._arena_nbytes)
        self._finalizer = weakref.finalize(self, arena.close)  # if starting the feeder fails
        prefault(arena.array)
        if self.device.type == "cuda":
            arena.pin()
        self._stats.page_locked = arena.is_pinned
        maker = BatchMaker(
            self._catalogs, self.config, arena, self.device, fused=self._fused,
            hooks=self._hooks, datasets=self._datasets,
        )  # fmt: skip
        storages = [dataset.storage for dataset in self._datasets]
        readers_class: Any = ProcessReaders if self._reader == "process" else ThreadReaders
        readers: functools.partial[Readers] = functools.partial(
            readers_class, storages, arena, self._num_threads
        )
        delivered = {(self._epoch, start + self.planner.width) for start in self._ahead}
        batches = (
            plan
            for plan in self.planner.batches(self._epoch, self._consumed)
            if (plan.epoch, plan.consumed) not in delivered
        )
        feeder = Feeder(self.planner, batches, readers, arena, maker, self._stats, **self._options)
        self._feeder, self._arena = feeder, arena
        self._pid = os.getpid()
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _shut_down, self._pid, feeder, arena)
        feeder.start()
        return feeder

    def state_dict(self) -> dict[str, Any]:
        """The position of the stream after the last delivered batch, as plain JSON values.

        It is the same on every rank, except within an optimiser step with `in_order=False`.
        """
        ahead = {"ahead": sorted(self._ahead), "width": self.planner.width} if self._ahead else {}
        shares = {"weights": self.planner.weights} if len(self._datasets) > 1 else {}
        hooks = {"hooks": self._hooks.name} if self._hooks is not None else {}
        return {
            **ahead,
            **shares,
            **hooks,
            "version": _STATE_VERSION,
            "snapshots": self._snapshots,
            "config": self.config.digest,
            "seed": self.seed,
            "global_batch_size": self.planner.step_size,
            "epoch": self._epoch,
            "consumed": self._consumed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes exactly at the position of a saved state, with any number of ranks.

        Raises:
            CannotResume: data, configuration, seed or optimiser batch differ; names which.
        """
        own_state = self.state_dict()
        if state.get("version") != _STATE_VERSION:
            raise CannotResume(f"state version {state.get('version')}, not {_STATE_VERSION}")
        for name in _MUST_MATCH:
            saved, current = state.get(name), own_state.get(name)
            if saved != current:
                raise CannotResume(
                    f"{name} was {saved!r} and is now {current!r}: {_MUST_MATCH[name]}"
                )
        self.planner.check_start(state["consumed"])
        if state.get("width", self.planner.width) != self.planner.width:
            raise CannotResume(
                f"{len(state['ahead'])} batches of {state['width']} samples were handed over "
                f"out of order; save at the end of an optimiser step to resume with batches of "
                f"{self.planner.width} (world size x batch size)"
            )
        self.close()
        self._epoch, self._consumed = state["epoch"], state["consumed"]
        self._ahead = set(state.get("ahead", ()))

    def stats(self) -> dict[str, Any]:
        """Counters and timings since construction; see `Stats.summary`."""
        return self._stats.summary()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a Chrome trace of reads, makes and waits; a wait is named by its cause."""
        self._stats.trace.write(path)

    def close(self) -> None:
        """Stops threads and the reader process, frees shared memory; iterating restarts them."""
        try:
            if self._finalizer is not None:
                self._finalizer()
        finally:  # after a second Ctrl-C while stopping, too
            self._forget()

    def _forget(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
        self._feeder = self._arena = self._finalizer = None

    def __enter__(self) -> FeatureLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _check_hooks(hooks: LoaderHooks, config: LoaderConfig) -> None:
    if not config.of_chains and (hooks.crop or hooks.features):
        raise ValueError("hooks for crops and features are of single chains; use a transform")
    if config.entries is not None and hooks.weights:
        raise ValueError("entries are drawn by the weights of their model: EntryConfig has them")


def _shut_down(pid: int, feeder: Feeder, arena: Arena) -> None:
    if pid == os.getpid():  # in a fork, the thread, the reader and held locks are the parent's
        feeder.stop()
        arena.close()


def _device(name: str | torch.device | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if str(device) == "cuda":  # without a number: the current one
        return torch.device("cuda", torch.cuda.current_device())
    return device

"""Batches of each rank, computed from positions.

A position is a sample's number in its epoch. Positions are divided into optimiser steps of
`global_batch_size`; within a step, batches of all ranks take neighbouring
positions. A sample depends on its position alone, so the union of all
ranks' batches is the same for every number of ranks that divides the step.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evofeed.base.errors import CannotResume, LoaderError
from evofeed.loader import counter_rng
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.draws import recycling_iters, sample_key
from evofeed.loader.hooks import LoaderHooks
from evofeed.loader.order import epoch_order, window_order
from evofeed.loader.views.weights import DatapointDraw


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """One sample: its chain, and the key of all its random draws."""

    epoch: int
    position: int
    dataset: int
    row: int
    key: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One batch of one rank."""

    epoch: int
    step: int
    """Optimiser step within the epoch."""
    consumed: int
    """Positions of the epoch that all ranks have consumed once this batch is delivered."""
    recycles: int
    """Recycling iterations plus one."""
    samples: tuple[SamplePlan, ...]


class Planner:
    """Plans the batches of one rank: an endless stream from any position of any epoch."""

    def __init__(
        self,
        catalogs: Sequence[ChainCatalog],
        weights: Sequence[float],
        config: LoaderConfig,
        *,
        rank: int,
        world_size: int,
        seed: int,
        lazy: bool = False,
        hooks: LoaderHooks | None = None,
    ) -> None:
        self._hooks = hooks
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size}")
        self.catalogs, self.weights, self.config = catalogs, weights, config
        self.rank, self.seed = rank, seed
        self._lazy = lazy  # an epoch's order is computed only as far as requested
        self.width = world_size * config.batch_size
        self.step_size = config.global_batch_size or self.width
        if self.step_size % self.width:
            raise ValueError(
                f"global_batch_size {self.step_size} is not a multiple of world size x batch size "
                f"({world_size} x {config.batch_size})"
            )
        length = config.epoch_len or sum(len(catalog) for catalog in catalogs)
        self.steps = length // self.step_size if config.drop_last else -(-length // self.step_size)
        if not self.steps:
            raise LoaderError(
                f"{length} samples do not fill one optimiser step of {self.step_size}, and "
                f"drop_last=True drops the remainder"
            )
        self.epoch_len = self.steps * self.step_size
        """Samples in an epoch: the requested length in full optimiser steps."""
        self._window: tuple[tuple[int, int], np.ndarray] = (-1, -1), np.zeros(0, np.int64)
        self._orders: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def batches_per_epoch(self) -> int:
        """Batches of each rank in an epoch."""
        return self.epoch_len // self.width

    def check_start(self, consumed: int) -> None:
        """Checks that batches can continue from this position.

        Raises:
            CannotResume: the world size does not divide the remainder of the step.
        """
        remainder = (-consumed) % self.step_size
        if not 0 <= consumed <= self.epoch_len or remainder % self.width:
            raise CannotResume(
                f"{consumed} samples of the epoch are used; batches of {self.width} "
                f"(world size x batch size) cannot continue to the end of a step of "
                f"{self.step_size}: save at the end of an optimiser step or use another world size"
            )

    def order(self, epoch: int, stop: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Dataset and index row at each position of an epoch, at least those before `stop`."""
        stop = self.epoch_len if stop is None else stop
        computed = len(self._orders[epoch][0]) if epoch in self._orders else -1
        if computed < stop:
            length = self.epoch_len
            if self._lazy:
                length = min(length, max(stop, 2 * computed))
            datasets, chain = epoch_order(
                [len(catalog) for catalog in self.catalogs],
                [self._probability(catalog, epoch) for catalog in self.catalogs],
                self.weights,
                seed=self.seed,
                epoch=epoch,
                length=length,
                max_length=self.epoch_len,
                window=self.config.shuffle_window,
            )
            rows = np.empty_like(chain)
            for number, catalog in enumerate(self.catalogs):
                mask = datasets == number
                rows[mask] = catalog.rows[chain[mask]]
            for other_epoch in [e for e in self._orders if abs(e - epoch) > 1]:
                del self._orders[other_epoch]
            self._orders[epoch] = datasets, rows
        return self._orders[epoch]

    def _probability(self, catalog: ChainCatalog, epoch: int) -> np.ndarray | DatapointDraw | None:
        if self._hooks is None or self._hooks.weights is None:
            return catalog.probability
        return self._hooks.probability(catalog.index.take(catalog.rows), epoch)

    def batches(self, epoch: int, consumed: int, *, rank: int | None = None) -> Iterator[BatchPlan]:
        """Batches from this position on, an endless stream over the following epochs.

        `consumed` positions of the first epoch are skipped, those of all ranks.
        """
        rank = self.rank if rank is None else rank
        while True:
            for start in range(consumed, self.epoch_len, self.width):
                yield self._batch(epoch, start, rank)
            epoch, consumed = epoch + 1, 0

    def _batch(self, epoch: int, start: int, rank: int) -> BatchPlan:
        step = start // self.step_size
        first = start + rank * self.config.batch_size
        positions = np.arange(first, first + self.config.batch_size)
        if self.config.balance:
            window = self.step_size * self.config.balance_steps
            begin = start - start % window
            positions = begin + self._balanced(epoch, begin, window)[positions - begin]
        recycles = 1 + recycling_iters(self.config, self.seed, epoch, step)
        samples = tuple(self.sample(epoch, int(position)) for position in positions)
        return BatchPlan(epoch, step, start + self.width, recycles, samples)

    def _balanced(self, epoch: int, begin: int, window: int) -> np.ndarray:
        if (epoch, begin) != self._window[0]:
            cut = slice(begin, min(begin + window, self.epoch_len))
            datasets, rows = self.order(epoch, cut.stop)
            pairs = zip(datasets[cut], rows[cut], strict=True)
            costs = np.array([self.catalogs[dataset].cost[row] for dataset, row in pairs])
            key = counter_rng.stream_key(self.seed, epoch, begin, Purpose.BALANCE)
            self._window = (epoch, begin), window_order(costs, self.step_size, key)
        return self._window[1]

    def sample(self, epoch: int, position: int) -> SamplePlan:
        """The sample at a position."""
        datasets, rows = self.order(epoch, position + 1)
        key = sample_key(self.seed, epoch, position)
        return SamplePlan(epoch, position, int(datasets[position]), int(rows[position]), key)

    def substitute(self, sample: SamplePlan, bad: set[tuple[int, int]]) -> SamplePlan:
        """The same sample with another chain of its dataset, drawn by the sample's own key.

        Raises:
            LoaderError: every chain of the dataset is bad.
        """
        catalog = self.catalogs[sample.dataset]
        key = counter_rng.stream_key(sample.key, Purpose.SUBSTITUTE)
        for attempt in range(20 * len(catalog)):
            row = catalog.substitute(key, attempt)
            if (sample.dataset, row) not in bad:
                return SamplePlan(sample.epoch, sample.position, sample.dataset, row, sample.key)
        raise LoaderError(
            f"none of the {len(catalog)} chains of {catalog.uri or 'the dataset'} can be read"
        )


class RunPlan:
    """The samples of every rank of one run; thread-safe.

    The order of an epoch takes time proportional to its chains. It is computed once for all ranks,
    as far as requested; later calls take time proportional to the samples they return.

    `catalog` has the eligible chains, if the caller has them already; None: made from the index.

    Raises:
        LoaderError: no chain passes the filters.
        ValueError: world size and batch sizes do not fit each other.
    """

    def __init__(
        self,
        index: pa.Table,
        config: LoaderConfig,
        *,
        world_size: int,
        seed: int,
        catalog: ChainCatalog | None = None,
    ) -> None:
        self._world_size = world_size
        self._catalog = ChainCatalog(index, 0, config) if catalog is None else catalog
        self._nbytes = index["nbytes"]
        self._planner = Planner(
            [self._catalog], [1.0], config, rank=0, world_size=world_size, seed=seed, lazy=True
        )
        self._lock = threading.Lock()

    def samples(
        self,
        rank: int | None,
        *,
        epoch: int = 0,
        start: int = 0,
        batches: int = 1,
        most: int = 1_000_000,
    ) -> list[dict[str, Any]]:
        """The samples that the ranks' loaders will read.

        Args:
            rank: of the samples; None: all ranks.
            epoch: the first epoch.
            start: the first batch of that epoch.
            batches: of each rank; they may extend into following epochs.
            most: upper limit of the samples in one call.

        Returns:
            One row a sample, sorted by epoch, batch, rank and position: those, the optimiser
            `step`, `chain_id`, `recycling_iters`, and the `shard`, `offset` and `nbytes` to read.

        Raises:
            ValueError: no such rank or batch; more samples than `most`.
        """
        planner = self._planner
        ranks = self._world_size if rank is None else 1
        if (num := ranks * batches * planner.config.batch_size) > most:
            raise ValueError(
                f"{num} samples in one plan, at most {most}: ask for one rank, or for fewer "
                "batches at a time (start, batches)"
            )
        if rank is not None and not 0 <= rank < self._world_size:
            raise ValueError(f"rank {rank} is not one of {self._world_size}")
        if not 0 <= start < planner.batches_per_epoch:
            raise ValueError(
                f"batch {start}: an epoch has {planner.batches_per_epoch} of each rank"
            )
        rows = []
        with self._lock:  # the planner caches the orders of neighbouring epochs
            stop = (start + batches) * planner.width
            if rank is not None and not planner.config.balance:  # not the ranks after this one
                stop -= (self._world_size - 1 - rank) * planner.config.batch_size
            planner.order(epoch, min(planner.epoch_len, stop))
            for number in range(self._world_size) if rank is None else (rank,):
                stream = planner.batches(epoch, start * planner.width, rank=number)
                for batch in itertools.islice(stream, batches):
                    rows += [self._row(batch, number, sample) for sample in batch.samples]
        columns = ("epoch", "batch", "rank", "position")
        return sorted(rows, key=lambda row: [row[name] for name in columns])

    def _row(self, batch: BatchPlan, rank: int, sample: SamplePlan) -> dict[str, Any]:
        location = self._catalog.location(sample.row)
        return {
            "epoch": batch.epoch,
            "batch": batch.consumed // self._planner.width - 1,
            "step": batch.step,
            "rank": rank,
            "position": sample.position,
            "chain_id": location.chain_id,
            "recycling_iters": batch.recycles - 1,
            "shard": location.key.removeprefix("shards/"),
            "offset": location.offset,
            "nbytes": self._nbytes[sample.row].as_py(),
        }

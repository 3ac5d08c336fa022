"""An endless stream of batches, from a loader of epochs or from a few fixed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.losses.chain_labels import flat_batch


@runtime_checkable
class Loader(Protocol):
    """The interface of a loader for training; `evofeed.loader.FeatureLoader` is one."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Batches from the current state to the end of the epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Position of the next batch, JSON-ready."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""


class BatchStream:
    """An endless iterator of batches: the next epoch follows the last batch of one.

    Attributes:
        epochs: epochs completed so far by this stream.
        first: True if the last batch was the first of its epoch.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.epochs = 0
        self.first = False
        self._batches: Iterator[dict[str, Tensor]] | None = None

    def __next__(self) -> dict[str, Tensor]:
        """The next batch (raises TrainerError: an epoch has no batch)."""
        self.first = self._batches is None
        if self._batches is None:
            self._batches = iter(self.loader)
        batch = next(self._batches, None)
        if batch is None and not self.first:
            self.epochs, self.first = self.epochs + 1, True
            self._batches = iter(self.loader)
            batch = next(self._batches, None)
        if batch is None:
            raise TrainerError(
                "the loader gave no batch at all: the dataset is empty, or every chain is filtered "
                "out, or there are more ranks than chains"
            )
        return flat_batch(batch) if "gt_features" in batch else batch

    @property
    def epoch(self) -> int:
        """Epoch of the last batch: as the loader counts, else as this stream does."""
        return int(getattr(self.loader, "epoch", self.epochs))

    def close(self) -> None:
        """Closes the loader's iterator, so that its threads and readers can end."""
        getattr(self._batches, "close", lambda: None)()
        self._batches = None


def loader_stats(loader: Any) -> dict[str, Any]:
    """Statistics of a loader's waits, if it has any."""
    stats = getattr(loader, "stats", None)
    return dict(stats()) if stats else {}


def sample_names(loader: Any) -> Callable[[], list[str]]:
    """A function that returns the names of the chains in the loader's last batch.

    A call walks through the loader's plan, so it is only made for steps that fail.
    """
    if hasattr(loader, "last_ids"):
        names = list(loader.last_ids)
        return lambda: names
    planner = getattr(loader, "planner", None)
    if planner is None:
        return list
    state = loader.state_dict()
    return lambda: _planned_names(planner, state["epoch"], state["consumed"])


def _planned_names(planner: Any, epoch: int, consumed: int) -> list[str]:
    plan = next(planner.batches(epoch, consumed - planner.width))
    return [
        f"{planner.catalogs[s.dataset].location(s.row).chain_id} "
        f"(epoch {epoch}, sample {s.position})"
        for s in plan.samples
    ]


def num_recycles(batch: dict[str, Tensor]) -> int:
    """Passes through the model (R) of a batch: the length of the first axis of `msa_feat`."""
    return int(batch["msa_feat"].shape[0]) if "msa_feat" in batch else 1


class FixedBatches:
    """A loader that repeats the first batches of another one, to overfit them.

    The loader is read once, at the first batch. `last_ids` are the chains of the last batch.
    """

    def __init__(self, loader: Loader, count: int) -> None:
        self._loader, self._count = loader, count
        self._start = loader.state_dict()
        self._cached: list[tuple[dict[str, Tensor], list[str]]] = []
        self._position = 0
        self.config = getattr(loader, "config", None)
        self.most_chains = getattr(loader, "most_chains", None)
        self.last_ids: list[str] = []

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The rest of the epoch."""
        self._position %= self._count
        while self._position < self._count:
            batch, self.last_ids = self._entries()[self._position]
            self._position += 1
            yield batch

    def batches(self) -> list[dict[str, Tensor]]:
        """All batches; does not change the position in the epoch."""
        return [batch for batch, _ in self._entries()]

    def state_dict(self) -> dict[str, Any]:
        """Position of the next batch, and the loader's state at the first batch."""
        return self._start | {"fixed_position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state; the loader must have the same dataset and settings."""
        self._loader.load_state_dict({k: v for k, v in state.items() if k != "fixed_position"})
        self._position = state["fixed_position"]

    def stats(self) -> dict[str, Any]:
        """Statistics of the loader's waits, if it has any."""
        return loader_stats(self._loader)

    def close(self) -> None:
        """Closes the loader."""
        getattr(self._loader, "close", lambda: None)()

    def _entries(self) -> list[tuple[dict[str, Tensor], list[str]]]:
        """Batches with the names of their chains."""
        if not self._cached:
            stream = BatchStream(self._loader)
            for _ in range(self._count):
                batch = {name: value.clone() for name, value in next(stream).items()}
                self._cached.append((batch, sample_names(self._loader)()))
            stream.close()
            self.close()
        return self._cached

"""An endless stream of batches from a loader of epochs, or of a few batches over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.losses.chain_labels import flat_batch


@runtime_checkable
class Loader(Protocol):
    """What training needs of a loader; `evofeed.loader.FeatureLoader` is one."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Batches from where the state is to the end of the epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from, JSON-ready."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""


class BatchStream:
    """Batches without end: when an epoch is over the next begins.

    Attributes:
        epochs: epochs completed so far by this stream.
        first: whether the last batch was the first of its epoch.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.epochs = 0
        self.first = False
        self._batches: Iterator[dict[str, Tensor]] | None = None

    def __next__(self) -> dict[str, Tensor]:
        """The next batch (raises TrainerError: a whole epoch held no batch)."""
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
        """Let go of the loader's iterator, so that its threads and readers can end."""
        getattr(self._batches, "close", lambda: None)()
        self._batches = None


def loader_stats(loader: Any) -> dict[str, Any]:
    """What a loader waited for, if it says."""
    stats = getattr(loader, "stats", None)
    return dict(stats()) if stats else {}


def sample_names(loader: Any) -> Callable[[], list[str]]:
    """Says later which chains were in the batch that the loader gave last.

    Asking costs a walk through the loader's plan, so nobody asks unless there is trouble.
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
    """Passes through the model that a batch was made for (R): the first axis of `msa_feat`."""
    return int(batch["msa_feat"].shape[0]) if "msa_feat" in batch else 1


class FixedBatches:
    """The first batches of a loader as an epoch of their own, again and again: whether a model can
    learn at all, or one chain by heart.

    The loader is read once, when the first is asked for. `last_ids` are chains of the last one.
    """

    def __init__(self, loader: Loader, count: int) -> None:
        self._loader, self._count = loader, count
        self._start = loader.state_dict()
        self._kept: list[tuple[dict[str, Tensor], list[str]]] = []
        self._position = 0
        self.config = getattr(loader, "config", None)
        self.most_chains = getattr(loader, "most_chains", None)
        self.last_ids: list[str] = []

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The rest of the epoch."""
        self._position %= self._count
        while self._position < self._count:
            batch, self.last_ids = self._all()[self._position]
            self._position += 1
            yield batch

    def batches(self) -> list[dict[str, Tensor]]:
        """All of them; an epoch under way stays where it is."""
        return [batch for batch, _ in self._all()]

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from, and what the kept ones come from."""
        return self._start | {"fixed_position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; the loader must be the one it was."""
        self._loader.load_state_dict({k: v for k, v in state.items() if k != "fixed_position"})
        self._position = state["fixed_position"]

    def stats(self) -> dict[str, Any]:
        """The loader's, if it has any."""
        return loader_stats(self._loader)

    def close(self) -> None:
        """Let go of the loader."""
        getattr(self._loader, "close", lambda: None)()

    def _all(self) -> list[tuple[dict[str, Tensor], list[str]]]:
        if not self._kept:
            stream = BatchStream(self._loader)
            for _ in range(self._count):
                batch = {name: value.clone() for name, value in next(stream).items()}
                self._kept.append((batch, sample_names(self._loader)()))
            stream.close()
            self.close()
        return self._kept

"""A few batches over and over: whether a model can learn at all, or one chain by heart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from evofeed.trainer.run.stream import BatchStream, Loader, sample_names


class FixedBatches:
    """The first batches of a loader as an epoch of their own, again and again.

    Args:
        loader: where they come from; read once, when the first is asked for.
        count: how many to keep, on the device.

    Attributes:
        last_ids: chains of the batch given last.
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
        stats = getattr(self._loader, "stats", None)
        return dict(stats()) if stats else {}

    def close(self) -> None:
        """Let go of the loader."""
        close = getattr(self._loader, "close", None)
        if close:
            close()

    def _all(self) -> list[tuple[dict[str, Tensor], list[str]]]:
        if not self._kept:
            stream = BatchStream(self._loader)
            for _ in range(self._count):
                batch = {name: value.clone() for name, value in next(stream).items()}
                self._kept.append((batch, sample_names(self._loader)()))
            stream.close()
            self.close()
        return self._kept

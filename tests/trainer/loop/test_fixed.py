"""A few batches over and over: the same ones, in order, also after a resume."""

from __future__ import annotations

import torch
from tests.trainer.loop.loop_standin import TinyLoader
from torch import Tensor

from evofeed.trainer.run.stream import BatchStream, FixedBatches


def numbers(stream: BatchStream, count: int) -> list[float]:
    return [float(next(stream)["target"].sum()) for _ in range(count)]


def test_the_first_batches_come_again_and_again() -> None:
    first = numbers(BatchStream(TinyLoader()), 3)
    loader = FixedBatches(TinyLoader(), 3)
    stream = BatchStream(loader)
    assert numbers(stream, 7) == [*first, *first, first[0]]
    assert loader.last_ids == ["chain0"]
    assert stream.epochs == 2
    assert [float(b["target"].sum()) for b in loader.batches()] == first
    assert numbers(stream, 1) == first[1:2]
    later = FixedBatches(TinyLoader(), 3)
    later.load_state_dict(loader.state_dict())  # within an epoch
    assert numbers(BatchStream(later), 2) == numbers(stream, 2)


def test_kept_batches_are_copies_that_a_loader_may_overwrite() -> None:
    class Reusing(TinyLoader):
        def __iter__(self):
            kept: dict[str, Tensor] = {}
            for batch in super().__iter__():
                kept = kept or {name: torch.empty_like(value) for name, value in batch.items()}
                for name, value in batch.items():
                    kept[name].copy_(value)
                yield kept

    assert numbers(BatchStream(FixedBatches(Reusing(), 3)), 4) == numbers(
        BatchStream(FixedBatches(TinyLoader(), 3)), 4
    )

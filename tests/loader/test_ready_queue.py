"""Between feeder and consumer: who sleeps, who is woken, and when."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.loader.records import small_dataset
from torch import Tensor

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.loader.batch_maker import BatchMaker, FilledSlot, ReadyBatch
from evofeed.loader.plan import BatchPlan
from evofeed.loader.ready_queue import ReadyQueue


def batch(number: int) -> ReadyBatch:
    return ReadyBatch(BatchPlan(0, number, number + 1, 1, ()), {}, None, 0, 0.0)


class Feeding(threading.Thread):
    """Puts batches as long as there is room."""

    def __init__(self, queue: ReadyQueue) -> None:
        super().__init__(daemon=True)
        self.queue, self.made = queue, 0

    def run(self) -> None:
        while self.queue.wait_for_room():
            self.queue.put(batch(self.made))
            self.made += 1

    def settled(self, made: int) -> bool:
        """Whether so many are made and no more come."""
        deadline = time.monotonic() + 240
        while self.made < made:
            assert time.monotonic() < deadline, f"{self.made} made, not {made}"
            time.sleep(0.001)
        time.sleep(0.05)
        return self.made == made


def step_of(item: ReadyBatch | BaseException | None) -> int:
    assert isinstance(item, ReadyBatch)
    return item.plan.step


def test_the_feeder_sleeps_until_one_is_left_and_the_consumer_has_what_it_took() -> None:
    queue = ReadyQueue(3)
    feeding = Feeding(queue)
    feeding.start()
    assert feeding.settled(3)
    assert step_of(queue.take(240.0)) == 0
    queue.refill()
    assert feeding.settled(3)  # two are left
    assert step_of(queue.take(240.0)) == 1
    assert feeding.settled(3)  # one is left, but nobody said that it was handed over
    queue.refill()
    assert feeding.settled(5)
    assert [step_of(queue.take(240.0)) for _ in range(3)] == [2, 3, 4]
    queue.close()
    feeding.join(240)
    assert not feeding.is_alive()


def test_nothing_is_made_while_a_batch_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    during: list[int] = []
    make, hand_over = BatchMaker.make, ReadyBatch.hand_over

    def counted(self: BatchMaker, plan: BatchPlan, slots: list[FilledSlot]) -> ReadyBatch:
        made.append(plan.consumed)
        return make(self, plan, slots)

    def slowly(self: ReadyBatch) -> dict[str, Tensor]:
        before = len(made)
        time.sleep(0.05)
        during.append(len(made) - before)
        return hand_over(self)

    monkeypatch.setattr(BatchMaker, "make", counted)
    monkeypatch.setattr(ReadyBatch, "hand_over", slowly)
    config = LoaderConfig(crop_size=8, max_msa_clusters=4, max_extra_msa=4, epoch_len=40)
    dataset = small_dataset(tmp_path / "d", 8)
    with FeatureLoader(dataset, config, device="cpu", reader="thread") as loader:
        stream = iter(loader)
        next(stream)
        assert loader._feeder is not None
        for _ in range(8):
            while loader._feeder.ready._filling:
                time.sleep(0.001)
            next(stream)
        causes = set(loader.stats()["wait_seconds_by_cause"])
    assert during[1:] == [0] * 8
    assert len(made) > 9
    assert causes <= {"starting", "reading", "making", "waking up", "handing over"}

"""A training run as events: reads, samples made ahead, steps that end together, failures.

Groups of cards that share a sample are one process each. A group's loader asks the storage,
makes a sample and keeps some ahead; a step begins when its sample is there, ends when the
slowest group has ended and the gradient is averaged. A second, coarser run of events counts
steps, checkpoints, failures and restarts of a whole training.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy
from benchmarks.scale.costs import ASSUMED, Loader, Stage, Storage

Events = Generator[Any, Any, None]
RECYCLES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some steps of a run.

    Attributes:
        step: mean seconds of a step.
        waited: mean share of a step in which a group waited for its sample.
        storage_busy: share of the storage's time.
    """

    step: float
    waited: float
    storage_busy: float


def window(
    stage: Stage,
    loader: Loader,
    *,
    groups: int,
    mean_gradient: float,
    storage: Storage | None = None,
    recycles: tuple[int, ...] = RECYCLES,
    steps: int = 80,
    warm_up: int = 20,
    seed: int = 0,
) -> Window:
    """Simulate some steps of as many groups, each with its own sample.

    Args:
        stage: what a step takes, shared already among the cards of a group.
        loader: what each group reads ahead.
        groups: samples of a step.
        mean_gradient: seconds of the gradient's average.
        storage: what all groups read from; None: always at once.
        recycles: numbers of recycles, equally often, one a step, the same for all.
        steps: that count.
        warm_up: steps before them, while the first samples are made.
        seed: of all draws.
    """
    env = simpy.Environment()
    draws = random.Random(seed)
    passes: list[int] = []
    for few in (warm_up, steps):
        passes += draws.sample([recycles[step % len(recycles)] for step in range(few)], few)
    servers = simpy.Resource(env, storage.servers if storage else 1)
    busy = [0.0]
    waits: list[float] = []
    counted_from = [0.0]

    def read(number: random.Random) -> Events:
        if storage:
            with servers.request() as turn:
                yield turn
                busy[0] += storage.seconds_a_read
                yield env.timeout(storage.seconds_a_read)
        slow = number.random() < loader.slow_share
        yield env.timeout(loader.make + slow * loader.slow_seconds)

    def reader(ready: simpy.Store, number: random.Random) -> Events:
        while True:
            yield env.process(read(number))
            yield ready.put(1)

    def compute(ready: simpy.Store, step: int, number: random.Random) -> Events:
        began = env.now
        yield ready.get()
        waits.append(env.now - began)
        yield env.timeout(loader.handover)
        usual = stage.step + passes[step] * stage.recycle
        yield env.timeout(usual * max(number.gauss(1, stage.jitter), 0.5))

    def run() -> Events:
        for step in range(warm_up + steps):
            if step == warm_up:
                waits.clear()
                counted_from[0], busy[0] = env.now, 0.0
            yield env.all_of([env.process(compute(*each(step))) for each in members])
            yield env.timeout(mean_gradient)

    members = []
    for group in range(groups):
        ready = simpy.Store(env, capacity=loader.ahead)
        number = random.Random(seed * 1_000_003 + group + 1)
        for _ in range(loader.threads):
            env.process(reader(ready, number))
        members.append(lambda step, ready=ready, number=number: (ready, step, number))
    env.run(env.process(run()))
    seconds = env.now - counted_from[0]
    return Window(
        step=seconds / steps,
        waited=sum(waits) / groups / seconds,
        storage_busy=min(busy[0] / seconds / (storage.servers if storage else 1), 1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A whole stage: its time, how often it failed, and what that cost."""

    hours: float
    failures: int
    lost_hours: float


def training(
    step: float, steps: int, cards: int, *, checkpoint_every: int = 500, seed: int = 0
) -> Training:
    """Simulate a stage from checkpoint to checkpoint, with cards that fail.

    Args:
        step: mean seconds of a step, from `window`.
        steps: of the stage.
        cards: any of which ends the run when it fails.
        checkpoint_every: steps.
        seed: of the failures.
    """
    env = simpy.Environment()
    draws = random.Random(seed)
    done, failures, lost = [0], [0], [0.0]
    rate = cards / (ASSUMED["hours_a_card_between_failures"] * 3600)

    def run() -> Events:
        until_failure = draws.expovariate(rate)
        while done[0] < steps:
            few = min(checkpoint_every, steps - done[0])
            seconds = few * step + ASSUMED["checkpoint_stall_seconds"]
            if until_failure > seconds:
                yield env.timeout(seconds)
                until_failure -= seconds
                done[0] += few
                continue
            yield env.timeout(until_failure + ASSUMED["seconds_until_restarted"])
            failures[0] += 1
            lost[0] += until_failure + ASSUMED["seconds_until_restarted"]
            until_failure = draws.expovariate(rate)

    env.run(env.process(run()))
    return Training(hours=env.now / 3600, failures=failures[0], lost_hours=lost[0] / 3600)

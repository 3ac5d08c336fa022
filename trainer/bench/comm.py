"""What talking costs: the same steps on one card, on all without a word, and on all.

Where cards share a sample (`axial`), what they exchange for that is in every case: one card alone
is then those of one sample, and a word is the gradient's.

A few batches are held on every rank and repeated, so data costs nothing, and the learning rate is
next to nothing, so every case does the same work. What a step takes longer with words than without
is what communication exposes; waiting for a slower rank is in both. The two take turns, round by
round, all ranks beginning each together, so that a clock that drifts is in both, too.

Source: the method is High-Flyer's (backward on N cards minus backward on one, data taken out).
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from evofeed.base.errors import TrainerError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.gradients.exchange import Exchange
from evofeed.trainer.gradients.modes import exchange_of
from evofeed.trainer.run.build import build_loader, build_model, set_precision
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.loop import Loop


def measure(
    config: TrainConfig, dataset: Any, world: World, *, modes: Sequence[str] = ("none",),
    steps: int = 200, batches: int = 8, hosts: int = 0, gbit: float = 0.0,
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:  # fmt: skip
    """Times of a step in milliseconds and bytes sent, JSON-ready; every rank must call it.

    Args:
        config: of the run; its `gradients` beside the mode.
        dataset: or its URI: what the batches are made of.
        modes: of `gradients`, each a case of its own.
        steps: of each case, after some to warm up; rounded up to whole rounds.
        batches: in a round; each brings its own number of recycles.
        hosts: pretend that the ranks are on so many; 0: as torchrun says.
        gbit: pretend that a host's link to the others takes so many gigabits a second: after a
            collective between hosts everything waits for as long as its bytes would take.
            0: no such thing. `unthrottled` is then the machine's own link, in mode `none`.
        tell: given what is known after every case, on the first rank.

    Raises:
        TrainerError: the ranks cannot be put on so many hosts.
    """
    if hosts:
        if world.size % hosts:
            raise TrainerError(f"{world.size} ranks cannot be {hosts} hosts of one size")
        os.environ["LOCAL_WORLD_SIZE"] = str(world.size // hosts)
        os.environ["LOCAL_RANK"] = str(world.rank % (world.size // hosts))
    warm = config.gradients.warmup_steps
    still = replace(config.optim, learning_rate=1e-12, warmup_steps=0, decay_after=1 << 60)
    config = config.replace(optim=still, fixed_batches=batches, steps=1 << 60, overlap=False)
    rounds = max(2, math.ceil(steps / batches))
    bench = _Bench(config, dataset, world, warm)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "preset": config.preset,
        "precision": config.precision,
        "ranks": world.size,
        "axial": config.axial,
        "hosts": hosts or "as torchrun says",
        "link_gbit": gbit or "the machine's own",
        "parameters": bench.parameters,
        "steps": rounds * batches,
        "batches": batches,
        "modes": {},
    }
    bench.warm_up()
    world.barrier()
    if world.reader == 0:  # all ranks of the first sample: they need each other
        (found["alone"],) = bench.cases([bench.case(None, World())], World(), rounds)
    world.barrier()
    own = [bench.case(mode, world) for mode in (None, *(["none"] if gbit else modes))]
    together, *others = bench.cases(own, world, rounds)
    found |= {"together": together, "recycles": bench.recycles}

    def add(mode: str, case: dict[str, Any], where: dict[str, Any]) -> None:
        exposed = case["step_ms"] - together["step_ms"]
        case |= {"exposed_ms": exposed, "exposed_share": exposed / case["step_ms"]}
        where[mode] = case
        if world.is_first:
            case["linear_scaling"] = found["alone"]["step_ms"] / case["step_ms"]
            tell(found)

    for mode, case in zip(["unthrottled"] if gbit else modes, others, strict=True):
        add(mode, case, found if gbit else found["modes"])
    for mode in modes if gbit else []:
        (case,) = bench.cases([bench.case(mode, world, gbit)], world, rounds)
        add(mode, case, found["modes"])
    return found


@dataclass(slots=True)
class _Case:
    """Who talks how, and what its rounds took.

    Attributes:
        world: who the loop thinks takes part: this rank alone where nothing is said.
        exchange: of the gradient.
        seconds: mean of a step, round by round.
    """

    world: World
    exchange: Exchange
    seconds: list[float] = field(default_factory=list)


class _Bench:
    """One model and its batches, for case after case."""

    def __init__(self, config: TrainConfig, dataset: Any, world: World, first: int) -> None:
        self.config, self.world = config, world
        set_precision(config)
        self.model, self.loss = build_model(config, world.device, None, world.axis)
        self.loader = build_loader(config, dataset, world)
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.recycles: list[int] = []
        self.step = first
        self.model.train()
        with tempfile.TemporaryDirectory() as scratch:  # one for all: a step is recorded once
            self.loop = Loop(
                config, self.model, self.loss, self.loader, out=Path(scratch),
                world=World(device=world.device),
            )  # fmt: skip

    def case(self, mode: str | None, world: World, gbit: float = 0.0) -> _Case:
        """Every rank for itself (None), or in a mode."""
        device = self.world.device
        talking = world if mode is not None else World(device=device)
        optimizer = self.loop.optimizer
        exchange = exchange_of(
            replace(self.config.gradients, mode=mode or "none"), optimizer.spans.values(),
            optimizer.grad.numel(), rank=talking.rank, ranks=talking.size, device=device,
        )  # fmt: skip
        if gbit and exchange.between.size > 1:
            # A ring of all ranks crosses a host's link once, parts of it side by side each.
            share = 1 if mode == "none" else exchange.inside.size
            wait, rate = _wait(device), gbit / share
            exchange.between.after = lambda nbytes: wait(nbytes * 8e-9 / rate)
        return _Case(talking, exchange)

    def warm_up(self) -> None:
        """Whole rounds, so that all ranks go on with the same batch, each for itself."""
        # A step to compile, one to record each pass and one to be sure, where that is done.
        least = 3 if self.world.device.type == "cuda" else 1
        batches = self.config.fixed_batches
        alone = World(device=self.world.device)
        self._round(self.case(None, alone), alone, batches * math.ceil(least / batches))

    def cases(self, cases: Sequence[_Case], who: World, rounds: int) -> list[dict[str, Any]]:
        """In turn; medians of what each round took the slowest of these ranks."""
        gc.collect()  # what cases before kept
        batches = self.config.fixed_batches
        for case in cases:
            if who.size > 1:  # the same for all ranks, so that they stay with the same batch
                self._round(case, who, 1)
        sent = [(case.exchange.between.sent, case.exchange.inside.sent) for case in cases]
        for _ in range(rounds):
            for case in cases:
                case.seconds.append(self._round(case, who, batches))
        self.recycles = [int(batch["msa_feat"].shape[0]) - 1 for batch in self.loader.batches()]  # type: ignore[attr-defined]
        found = []
        for case, (between, inside) in zip(cases, sent, strict=True):
            seconds = [max(ranks) for ranks in zip(*who.collect(case.seconds), strict=True)]
            found.append(
                {
                    "step_ms": 1e3 * statistics.median(seconds),
                    "fastest_ms": 1e3 * min(seconds),
                    "slowest_ms": 1e3 * max(seconds),
                    "steps": rounds * batches,
                    "bytes_between": (case.exchange.between.sent - between) / (rounds * batches),
                    "bytes_inside": (case.exchange.inside.sent - inside) / (rounds * batches),
                }
            )
            case.exchange.kept.clear()  # its memory
        return found

    def _round(self, case: _Case, who: World, steps: int) -> float:
        """Mean seconds of so many steps, begun by all of `who` at once."""
        self.loop.world, self.loop.exchange = case.world, case.exchange
        who.barrier()
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self.loop.step(self.step)
            self.step += 1
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps


def _wait(device: torch.device) -> Callable[[float], None]:
    """Waits so many seconds, on the device's own timeline."""
    if device.type != "cuda":
        return time.sleep
    spin: Callable[[int], None] = torch.cuda._sleep  # takes clock cycles
    cycles = 50_000_000
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    spin(cycles)  # the first launch
    began.record()
    spin(cycles)
    ended.record()
    torch.cuda.synchronize()
    rate = cycles / (began.elapsed_time(ended) / 1e3)
    return lambda seconds: spin(int(seconds * rate))

"""What talking costs: the same steps on one card, on all without a word, and on all.

A few batches are held on every rank and repeated, so data costs nothing, and the learning rate is
next to nothing, so every case does the same work. What a step takes longer with words than without
is what communication exposes; waiting for a slower rank is in both.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evofeed.errors import TrainerError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.gradients.modes import exchange_of
from evofeed.trainer.run.build import build_loader, build_model, set_precision
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.loop import Loop


def measure(
    config: TrainConfig,
    dataset: Any,
    world: World,
    *,
    modes: Sequence[str] = ("none",),
    steps: int = 200,
    batches: int = 8,
    hosts: int = 0,
    gbit: float = 0.0,
    slow: float = 0.0,
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Times of a step in milliseconds and bytes sent, JSON-ready; every rank must call it.

    Args:
        config: of the run; its `gradients` beside the mode.
        dataset: or its URI: what the batches are made of.
        world: who takes part.
        modes: of `gradients`, each a case of its own.
        steps: of each case, after a round to warm up; rounded up to whole rounds.
        batches: in a round; each brings its own number of recycles.
        hosts: pretend that the ranks are on so many; 0: as torchrun says.
        gbit: pretend that a host's link to the others takes so many gigabits a second: after a
            collective between hosts everything waits for as long as its bytes would take.
            0: no such thing. `unthrottled` is then the machine's own link, in mode `none`.
        slow: a last case, `slowed`: mode `none`, the last rank's step longer by this share;
            `lost` is what everybody's step takes longer, over that.
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
    bench = _Bench(config, dataset, world, rounds, warm)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "preset": config.preset,
        "precision": config.precision,
        "ranks": world.size,
        "hosts": hosts or "as torchrun says",
        "link_gbit": gbit or "the machine's own",
        "parameters": bench.parameters,
        "steps": rounds * batches,
        "batches": batches,
        "modes": {},
    }
    if world.is_first:
        found["alone"] = bench.case(None, World())
    world.barrier()
    found["together"] = bench.case(None, world)
    found["recycles"] = bench.recycles
    for mode, rate in [("none", 0.0)] * bool(gbit) + [(mode, gbit) for mode in modes]:
        case = bench.case(mode, world, rate)
        exposed = case["step_ms"] - found["together"]["step_ms"]
        case |= {"exposed_ms": exposed, "exposed_share": exposed / case["step_ms"]}
        if world.is_first:
            case["linear_scaling"] = found["alone"]["step_ms"] / case["step_ms"]
        if gbit and not rate:
            found["unthrottled"] = case
        else:
            found["modes"][mode] = case
        if world.is_first:
            tell(found)
    if slow:
        longer = slow * found["together"]["step_ms"]
        usual = found.get("unthrottled") or bench.case("none", world)
        case = bench.case("none", world, pause=longer / 1e3)
        lost = (case["step_ms"] - usual["step_ms"]) / longer
        found["slowed"] = case | {"by": slow, "lost": lost}
        if world.is_first:
            tell(found)
    return found


class _Bench:
    """One model and its batches, for case after case."""

    def __init__(
        self, config: TrainConfig, dataset: Any, world: World, rounds: int, first: int
    ) -> None:
        self.config, self.world, self.rounds = config, world, rounds
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

    def case(
        self, mode: str | None, who: World, gbit: float = 0.0, pause: float = 0.0
    ) -> dict[str, Any]:
        """Median time of a round's steps on the slowest of these ranks.

        Mode None: every rank for itself. The last rank pauses so many seconds in every step.
        """
        self.loop.exchange.kept.clear()  # of the case before: its memory
        gc.collect()
        self.loop.world = self.world if mode is not None else World(device=self.world.device)
        optimizer, world = self.loop.optimizer, self.loop.world
        exchange = self.loop.exchange = exchange_of(
            replace(self.config.gradients, mode=mode or "none"), optimizer.spans.values(),
            optimizer.grad.numel(), rank=world.rank, ranks=world.size, device=world.device,
        )  # fmt: skip
        if gbit and exchange.between.size > 1:
            # A ring of all ranks crosses a host's link once, parts of it side by side each.
            share = 1 if mode == "none" else exchange.inside.size
            wait, rate = _wait(self.world.device), gbit / share
            exchange.between.after = lambda nbytes: wait(nbytes * 8e-9 / rate)
        if pause and world.rank == world.size - 1:
            wait = _wait(self.world.device)
            exchange.between.after = lambda _: wait(pause)
        rounds = self._rounds(self.loop)
        seconds = [max(ranks) for ranks in zip(*who.collect(rounds), strict=True)]
        steps = len(rounds) * self.config.fixed_batches
        return {
            "step_ms": 1e3 * statistics.median(seconds),
            "fastest_ms": 1e3 * min(seconds),
            "slowest_ms": 1e3 * max(seconds),
            "bytes_between": self._sent[0] / steps,
            "bytes_inside": self._sent[1] / steps,
        }

    def _rounds(self, loop: Loop) -> list[float]:
        """Mean seconds of a step, round by round; after a round to warm up, or several."""
        batches = self.config.fixed_batches
        exchange = loop.exchange
        # A step to compile, one to record and one to be sure, where that is done.
        warm = 3 if self.world.device.type == "cuda" else 1
        seconds: list[float] = []
        for turn in range(-math.ceil(warm / batches), self.rounds):
            if turn == 0:
                before = exchange.between.sent, exchange.inside.sent
            if loop.world.device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(batches):
                loop.step(self.step)
                self.step += 1
            if loop.world.device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds.append((time.perf_counter() - began) / batches)
        self._sent = [
            now - then
            for now, then in zip((exchange.between.sent, exchange.inside.sent), before, strict=True)
        ]
        self.recycles = [int(batch["msa_feat"].shape[0]) - 1 for batch in self.loader.batches()]  # type: ignore[attr-defined]
        return seconds


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

"""What communication adds to a training step: one card, all without a word, and all.

    torchrun --nproc-per-node 2 benchmarks/comm.py initial_training --dataset data/ --out comm.json
    torchrun --nproc-per-node 4 benchmarks/comm.py run.yaml --dataset data/ --mode none int8 topk \\
        --hosts 2 --gbit 10

The run is a YAML file or a preset's name; modes are those of `gradients`. Where cards share a
sample (`axial`), what they exchange for that is in every case: one card alone is then those of one
sample, and a word is the gradient's.

A few batches are held on every rank and repeated, so data costs nothing, and the learning rate is
next to nothing, so every case does the same work. What a step takes longer with words than without
is what communication exposes; waiting for a slower rank is in both. The two take turns, round by
round, all ranks beginning each together, so that a clock that drifts is in both, too.

Source: the method is High-Flyer's (backward on N cards minus backward on one, data taken out).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
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

from evofeed.base.errors import TrainerError
from evofeed.base.files import write_atomic
from evofeed.trainer.config import GRADIENTS, TrainConfig
from evofeed.trainer.gradients.exchange import Exchange, Group
from evofeed.trainer.gradients.modes import exchange_of
from evofeed.trainer.run.build import build_loader, build_model, set_precision
from evofeed.trainer.run.distributed import World, join_world
from evofeed.trainer.run.loop import Loop
from evofeed.trainer.run.settings import load_config

BATCHES = 8
"""In a round; each brings its own number of recycles."""
Case = tuple[World, Exchange]
"""Who the loop thinks takes part, this rank alone where nothing is said, and what averages."""


def measure(
    config: TrainConfig, dataset: Any, world: World, *, modes: Sequence[str] = ("none",),
    steps: int = 200, hosts: int = 0, gbit: float = 0.0,
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:  # fmt: skip
    """Times of a step in milliseconds and bytes sent, JSON-ready; every rank must call it.

    Args:
        config: of the run; its `gradients` beside the mode.
        dataset: or its URI: what the batches are made of.
        modes: of `gradients`, each a case of its own.
        steps: of each case, after a round to warm up; rounded up to whole rounds.
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
    still = replace(config.optim, learning_rate=1e-12, warmup_steps=0, decay_after=1 << 60)
    config = config.replace(optim=still, fixed_batches=BATCHES, steps=1 << 60)
    rounds = max(2, math.ceil(steps / BATCHES))
    bench, alone = _Bench(config, dataset, world), World(device=world.device)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "preset": config.preset,
        "precision": config.precision,
        "ranks": world.size,
        "axial": config.axial,
        "hosts": hosts or "as torchrun says",
        "link_gbit": gbit or "the machine's own",
        "parameters": sum(p.numel() for p in bench.loop.model.parameters() if p.requires_grad),
        "steps": rounds * BATCHES,
        "batches": BATCHES,
        "modes": {},
    }
    bench.times([bench.case("none", alone)], alone, 0)  # compiles and records
    world.barrier()
    if world.reader == 0:  # all ranks of the first sample: they need each other
        (found["alone"],) = bench.times([bench.case("none", alone)], alone, rounds)
    world.barrier()
    own = [bench.case(mode, world) for mode in (["none"] if gbit else modes)]
    together, *others = bench.times([bench.case("none", alone), *own], world, rounds)
    batches = bench.loop.loader.batches()  # type: ignore[attr-defined]
    recycles = [int(batch["msa_feat"].shape[0]) - 1 for batch in batches]
    found |= {"together": together, "recycles": recycles}

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
        (case,) = bench.times([bench.case(mode, world, gbit)], world, rounds)
        add(mode, case, found["modes"])
    return found


class _Bench:
    """One model and its batches, for case after case."""

    def __init__(self, config: TrainConfig, dataset: Any, world: World) -> None:
        set_precision(config)
        model, loss = build_model(config, world.device, None, world.axis)
        model.train()
        loader = build_loader(config, dataset, world)
        self._config, self._device = config.gradients, world.device
        self._steps = itertools.count(config.gradients.warmup_steps)
        with tempfile.TemporaryDirectory() as scratch:  # one loop for all: a step is recorded once
            self.loop = Loop(
                config, model, loss, loader, out=Path(scratch), world=World(device=world.device)
            )

    def case(self, mode: str, world: World, gbit: float = 0.0) -> Case:
        """The ranks of a world, in a mode."""
        optimizer = self.loop.optimizer
        exchange = exchange_of(
            replace(self._config, mode=mode), optimizer.spans.values(), optimizer.grad.numel(),
            rank=world.rank, ranks=world.size, device=self._device,
        )  # fmt: skip
        if gbit and exchange.between.size > 1:
            # A ring of all ranks crosses a host's link once, parts of it side by side each.
            share = 1 if mode == "none" else exchange.inside.size
            wait, rate = _wait(self._device), gbit / share
            exchange.between = _SlowGroup(
                exchange.between, lambda nbytes: wait(nbytes * 8e-9 / rate)
            )
        return world, exchange

    def times(self, cases: Sequence[Case], who: World, rounds: int) -> list[dict[str, Any]]:
        """Cases in turn, all of `who` at once; medians of what each round took the slowest."""
        gc.collect()  # what cases before kept
        seconds: list[list[float]] = [[] for _ in cases]
        for _ in range(1 + rounds):  # the first does not count
            for case, own in zip(cases, seconds, strict=True):
                own.append(self._round(case, who))
        found = []
        for (_, exchange), own in zip(cases, seconds, strict=True):
            slowest = [1e3 * max(ranks) for ranks in zip(*who.collect(own), strict=True)]
            steps = len(own) * BATCHES
            found.append(
                {
                    "step_ms": statistics.median(slowest[1:] or slowest),
                    "fastest_ms": min(slowest[1:] or slowest),
                    "slowest_ms": max(slowest[1:] or slowest),
                    "steps": rounds * BATCHES,
                    "bytes_between": exchange.between.bytes_sent / steps,
                    "bytes_inside": exchange.inside.bytes_sent / steps,
                }
            )
            exchange.state.clear()  # its memory
        return found

    def _round(self, case: Case, who: World) -> float:
        """Mean seconds of its steps."""
        self.loop.world, self.loop.exchange = case
        who.barrier()
        self._synchronize()
        began = time.perf_counter()
        for _ in range(BATCHES):
            self.loop.step(next(self._steps))
        self._synchronize()
        return (time.perf_counter() - began) / BATCHES

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


class _SlowGroup(Group):
    """Each collective ends with `after` of the bytes that it sent."""

    def __init__(self, group: Group, after: Callable[[int], None]) -> None:
        super().__init__(group.handle, group.rank, group.size)
        self.after = after

    def _run(self, collective: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
        before = self.bytes_sent
        found = collective(x)
        self.after(self.bytes_sent - before)
        return found

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(super().sum, x)  # type: ignore[no-any-return]

    def sum_of_part(self, parts: torch.Tensor) -> torch.Tensor:
        return self._run(super().sum_of_part, parts)  # type: ignore[no-any-return]

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        return self._run(super().gather, mine)  # type: ignore[no-any-return]

    def swap(self, parts: torch.Tensor) -> torch.Tensor:
        return self._run(super().swap, parts)  # type: ignore[no-any-return]


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


def table(found: dict[str, Any]) -> list[str]:
    """What `measure` found, in lines for a terminal."""
    alone, together = found["alone"]["step_ms"], found["together"]["step_ms"]
    who = "one rank alone" if found["axial"] == 1 else "one sample alone"
    lines = [
        f"{found['ranks']} x {found['device']}, {found['parameters']:,} parameters",
        f"{who:<21}{alone:10.1f} ms a step",
        f"all, without a word  {together:10.1f} ms",
        "mode              step ms   exposed   share  scaling  MB between  MB inside",
    ]
    own = {"none, own link": found["unthrottled"]} if "unthrottled" in found else {}
    for name, one in (own | found["modes"]).items():
        lines.append(
            f"{name:<15}{one['step_ms']:>10.1f}{one['exposed_ms']:>10.1f}"
            f"{one['exposed_share']:>8.1%}{one['linear_scaling']:>9.3f}"
            f"{one['bytes_between'] / 1e6:>12.2f}{one['bytes_inside'] / 1e6:>11.2f}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", help="a run: a YAML file or a preset's name")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--mode", nargs="+", default=["none"], choices=GRADIENTS)
    parser.add_argument("--steps", type=int, default=200, help="of every case")
    parser.add_argument("--hosts", type=int, default=0, help="pretend to be so many")
    parser.add_argument(
        "--gbit", type=float, default=0.0, help="pretend a link so slow, by waiting"
    )
    parser.add_argument("--device", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    def save(found: dict[str, Any]) -> None:
        if options.out is not None:
            write_atomic(options.out, json.dumps(found, indent=1))

    settings = load_config(options.config)
    with join_world(options.device or None, settings.axial) as world:
        found = measure(
            settings, options.dataset, world, modes=options.mode, steps=options.steps,
            hosts=options.hosts, gbit=options.gbit, tell=save,
        )  # fmt: skip
        if world.is_first:
            print("\n".join(table(found)))


if __name__ == "__main__":
    main()

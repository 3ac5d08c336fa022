"""Four processes that run every gradient mode, in one start.

As four hosts of one rank and as two of two; the first rank writes all results to `results.pt`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.trainer.loop.loop_standin import standin_loop
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

from evofeed.trainer.config import GRADIENTS, GradientConfig, OptimConfig
from evofeed.trainer.gradients.exchange import Exchange
from evofeed.trainer.gradients.modes import exchange_of
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.loop import Loop

RANKS, STEPS = 4, 5
CASES = {mode: GradientConfig(mode=mode, density=0.02, warmup_steps=2) for mode in GRADIENTS}
CASES["momentum"] = replace(CASES["topk"], momentum=0.9)
RUNS = ("none", "powersgd", "int8", "momentum")


def model() -> nn.Module:
    torch.manual_seed(0)
    sizes = ((96, 64), (40, 24), (64, 96), (96, 64), (7, 5))
    return nn.ModuleList([nn.Linear(*size) for size in sizes])


def gradient(flat: FlatOptimizer, step: int, rank: int) -> Tensor:
    """A gradient of a few directions and some noise; zero between parameters, as a real one is."""
    torch.manual_seed(1_000 * step + rank)
    grad = torch.zeros_like(flat.grad)
    for _, view in flat.views(grad):
        view.copy_(torch.randn(view.shape) * 0.1)
        if view.dim() == 2:
            view.add_(torch.outer(torch.randn(len(view)), torch.randn(view.shape[1])))
    return grad


def on_hosts_of(locals_: int) -> int:
    """Sets torchrun's variables for hosts of `locals_` ranks; returns this rank's number."""
    rank = dist.get_rank()
    os.environ |= {"LOCAL_WORLD_SIZE": str(locals_), "LOCAL_RANK": str(rank % locals_)}
    return rank


def new(config: GradientConfig, flat: FlatOptimizer, locals_: int) -> Exchange:
    return exchange_of(
        config, flat.spans.values(), flat.grad.numel(), rank=on_hosts_of(locals_), ranks=RANKS,
        device=torch.device("cpu"),
    )  # fmt: skip


def from_all_ranks(value: Any) -> list[Any]:
    return World(rank=dist.get_rank(), size=RANKS).collect(value)


def averaged(config: GradientConfig, flat: FlatOptimizer, locals_: int) -> dict[str, Any]:
    """Means, state and bytes of some steps of one mode, on random gradients."""
    exchange, rank = new(config, flat, locals_), dist.get_rank()
    means, owed = [], torch.zeros_like(flat.grad)
    for step in range(STEPS):
        before = exchange.state.get("momentum", torch.zeros(())).clone()
        flat.grad.copy_(gradient(flat, step, rank))
        exchange.mean(flat.grad, step)
        means.append(flat.grad.clone())
        hosts = [gradient(flat, step, other) for other in range(RANKS)]
        if "momentum" in exchange.state:  # the residual collects momentum
            first = rank // locals_ * locals_
            mine = sum(hosts[first : first + locals_]) / locals_
            part = torch.zeros_like(mine)
            part[exchange.part] = mine[exchange.part] + config.momentum * before
            dist.all_reduce(part)
            owed += part / (RANKS / locals_)
        else:
            owed += sum(hosts) / RANKS
    state = {name: value.clone() for name, value in exchange.state.items()}
    bytes_between = exchange.between.bytes_sent
    flat.grad.fill_(1.0)
    if rank == RANKS - 1:
        flat.grad[200] = float("inf")
    exchange.mean(flat.grad, STEPS)
    layout, saved = exchange.collect()
    return {
        "sent": means, "owed": owed, "bytes": bytes_between, "saved": saved, "layout": layout,
        "same_everywhere": all(torch.equal(mean, means[-1]) for mean in from_all_ranks(means[-1])),
        "spread": not bool(flat.grad.isfinite().all()),
        "untouched": all(
            from_all_ranks(all(torch.equal(state[n], exchange.state[n]) for n in state))
        ),
    }  # fmt: skip


class Bucket:
    """The part of torch's `GradBucket` that its hook reads."""

    def __init__(self, flat: FlatOptimizer) -> None:
        self.buffer, self.index, self.is_last = lambda: flat.grad, lambda: 0, lambda: True
        self.gradients = lambda: [view for _, view in flat.views(flat.grad)]


def torch_means(flat: FlatOptimizer, config: GradientConfig) -> list[Tensor]:
    """Means by torch's own PowerSGD, beginning with our factors."""
    state = hook.PowerSGDState(
        None, config.rank, start_powerSGD_iter=config.warmup_steps,
        batch_tensors_with_same_shape=True,
    )  # fmt: skip
    ours: Any = new(config, flat, 1)
    means = []
    for step in range(STEPS):
        if step == config.warmup_steps:  # P is made again, its length alone counts
            p = sum(a * b * c for a, b, c in ours._shapes(0))
            state.p_memory_dict[0] = torch.empty(p)
            state.q_memory_dict[0] = ours.state["factors"].clone()
        flat.grad.copy_(gradient(flat, step, dist.get_rank()))
        # torch's first steps are plain means, summed after division
        hook.powerSGD_hook(state, Bucket(flat)).wait()
        means.append(flat.grad.clone())
    return means


def train(out: Path, name: str, steps: int) -> Loop:
    gradients = replace(CASES[name], rank=2, density=0.05, warmup_steps=5)
    world = World(rank=on_hosts_of(2), size=RANKS)
    loop = standin_loop(out, steps, world=world, gradients=gradients)
    loop.resume()
    loop.run()
    return loop


def runs(out: Path, name: str) -> dict[str, Any]:
    """A run, the same in two pieces, and its state moved to other hosts and modes."""
    full = train(out / name / "whole", name, 30)
    train(out / name / "parts", name, 10)
    parts = train(out / name / "parts", name, 30)
    layout, saved = World(rank=dist.get_rank(), size=RANKS).share(full.exchange.collect())
    moved: dict[str, Tensor] = {}
    for other in RUNS if name != "none" else ():
        exchange = new(CASES[other], full.optimizer, 1)
        exchange.restore(layout, saved)
        if exchange.leftover is not None:
            moved["left"] = exchange.leftover
        moved |= {f"{other}.{key}": value for key, value in exchange.collect()[1].items()}
    same = (
        torch.equal(a, b)
        for ours, theirs in (
            (full.optimizer.state(), parts.optimizer.state()),
            (full.exchange.state, parts.exchange.state),
        )
        for a, b in zip(ours.values(), theirs.values(), strict=True)
    )
    return {
        "losses": full.result.losses, "saved": saved, "layout": layout, "moved": moved,
        "alike": from_all_ranks(all(same)),
    }  # fmt: skip


def one_rank(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    flat = FlatOptimizer(model(), OptimConfig())
    results: dict[str, Any] = {
        "hosts": {
            locals_: {name: averaged(config, flat, locals_) for name, config in CASES.items()}
            for locals_ in (1, 2)
        },
        "torch": torch_means(flat, CASES["powersgd"]),
        "runs": {name: runs(out, name) for name in RUNS},
    }
    if dist.get_rank() == 0:
        torch.save(results, out / "results.pt")
    dist.destroy_process_group()

"""The gradient averaged during the backward pass is the average, whatever a rank leaves out."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from tests.trainer.forked import run_ranks
from torch import nn

from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.overlap import OverlappedMean

RANKS = 2


class Branches(nn.Module):
    """Three layers; the middle one is left out when asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))

    def forward(self, x: torch.Tensor, skip: bool) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if not (skip and number == 1):
                x = torch.tanh(layer(x))
        return x.square().sum()


def one_rank(folder: Path) -> None:
    """Three backward passes; the second leaves a layer out on rank 1, the third on both."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: list[list[torch.Tensor]] = []
    sent: list[int] = []
    for nbytes in (1, 7000, 1 << 30):  # a piece a parameter, a piece a layer, one piece
        model = Branches()
        optimizer = FlatOptimizer(model, OptimConfig())
        mean = OverlappedMean(model, optimizer, RANKS, nbytes)
        grads = []
        for number, skip in enumerate((False, rank == 1, True)):
            optimizer.zero_grad()
            torch.manual_seed(10 * number + rank)
            model(torch.randn(5, 40), skip).backward()
            sent.append(len(mean._works))
            mean.finish()
            grads.append(optimizer.grad.clone())
        found.append(grads)
    torch.save({"grads": found, "sent": sent}, folder / f"{rank}.pt")
    dist.destroy_process_group()


def expected() -> list[torch.Tensor]:
    """The mean of what each rank would have alone."""
    grads = []
    for number, skips in enumerate(((False, False), (False, True), (True, True))):
        total = None
        for rank, skip in enumerate(skips):
            model = Branches()
            optimizer = FlatOptimizer(model, OptimConfig())
            torch.manual_seed(10 * number + rank)
            model(torch.randn(5, 40), skip).backward()
            total = optimizer.grad if total is None else total + optimizer.grad
        assert total is not None
        grads.append(total / RANKS)
    return grads


def test_pieces_add_up_to_the_mean_and_leave_during_the_backward_pass(tmp_path: Path) -> None:
    run_ranks(RANKS, one_rank, tmp_path, folder=tmp_path)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]
    for grads in (run for rank in both for run in rank["grads"]):
        for grad, mean in zip(grads, expected(), strict=True):
            assert torch.equal(grad, mean)
    assert both[0]["sent"] == [6, 6, 2, 3, 3, 1, 1, 1, 0]
    assert both[1]["sent"] == [6, 2, 2, 3, 1, 1, 1, 0, 0]

"""What is made once while a step is recorded: random programs give what they give eagerly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.kernels.graphs.constants import Constants

NEW: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x + y,
    lambda x, y: torch.relu(x) * 0.5,
    lambda x, y: x.t().contiguous(),
    lambda x, y: x[0].expand(4, 4) * y,
    lambda x, y: torch.zeros(4, 4).scatter_add_(0, torch.arange(4).expand(4, 4), y),
    lambda x, y: torch.empty_like(x).copy_(y),
    lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: torch.where(x > 0, x, y).clamp(-9, 9),
    lambda x, y: x.sort(0)[0],
    lambda x, y: x * (1 + int(y.abs().sum()) % 3),
    lambda x, y: torch.repeat_interleave(x, torch.tensor([1, 0, 2, 1]), 0),
    lambda x, y: x[:, :4],
]
CHANGES: list[Callable[[Tensor, Tensor], object]] = [
    lambda own, y: own.add_(y),
    lambda own, y: own[:2].mul_(y[:2]),
    lambda own, y: own[1:].copy_(y[1:]),
    lambda own, y: torch.relu_(own),
    lambda own, y: own[0].fill_(1.5),
    lambda own, y: own.__setitem__(torch.tensor([0, 2]), y[:2]),
]


def run(program: random.Random, given: list[Tensor]) -> list[Tensor]:
    """A program's tensors; it changes its own alone."""
    pool, own = list(given), list[Tensor]()
    for _ in range(program.randint(4, 24)):
        x, y = program.choice(pool), program.choice(pool)
        if own and program.random() < 0.35:
            program.choice(CHANGES)(program.choice(own), y)
            continue
        made = program.choice(NEW)(x, y)
        pool.append(made)
        if made._base is None:
            own.append(made)
    return pool[len(given) :] or [given[-1] * 1]


def _eager(seed: int, given: list[Tensor]) -> list[Tensor] | None:
    try:
        return run(random.Random(seed), [t.clone() for t in given])
    except RuntimeError:  # it writes where it reads
        return None


@pytest.mark.parametrize("part", range(4))
@torch.no_grad()
def test_random_programs_give_what_they_give_eagerly(part: int) -> None:
    tried = kept = 0
    for seed in range(part * 150, part * 150 + 150):
        torch.manual_seed(seed)
        a, b, weight, *changing = (torch.randn(4, 4) for _ in range(6))
        constants = Constants([a, b], [weight])
        for t in changing[:1] * 2 + changing:
            expected = _eager(seed, [a, b, weight, t])
            if expected is None:
                break
            try:
                with constants:
                    made = run(random.Random(seed), [a, b, weight, t])
            except RuntimeError as error:
                assert "the host waits for a number" in str(error)
                break
            constants.settle(made)
            torch.testing.assert_close(made, expected, equal_nan=True)
        else:
            tried, kept = tried + 1, kept + len(constants.kept)
    assert tried > 40 and kept > tried

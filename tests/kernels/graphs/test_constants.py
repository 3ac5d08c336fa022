"""Constants of a recorded step: random programs return the results of eager mode."""

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
    lambda x, y: x.add_(y),
    lambda x, y: x[:2].mul_(y[:2]),
    lambda x, y: x[1:].copy_(y[1:]),
    lambda x, y: torch.relu_(x),
    lambda x, y: x[0].fill_(1.5),
    lambda x, y: x.__setitem__(torch.tensor([0, 2]), y[:2]),
]


def run(program: random.Random, inputs: list[Tensor]) -> list[Tensor]:
    """The tensors of a program, which writes only to those that it created."""
    pool, private = list(inputs), list[Tensor]()
    for _ in range(program.randint(4, 24)):
        x, y = program.choice(pool), program.choice(pool)
        if private and program.random() < 0.35:
            program.choice(CHANGES)(program.choice(private), y)
            continue
        result = program.choice(NEW)(x, y)
        pool.append(result)
        if result._base is None:
            private.append(result)
    return pool[len(inputs) :] or [inputs[-1] * 1]


def _eager(seed: int, inputs: list[Tensor]) -> list[Tensor] | None:
    try:
        return run(random.Random(seed), [t.clone() for t in inputs])
    except RuntimeError:  # it writes where it reads
        return None


@pytest.mark.parametrize("part", range(4))
@torch.no_grad()
def test_random_programs_return_their_eager_results(part: int) -> None:
    tried = saved = 0
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
                    results = run(random.Random(seed), [a, b, weight, t])
            except RuntimeError as error:
                assert "the host waits for a number" in str(error)
                break
            constants.end_run(results)
            torch.testing.assert_close(results, expected, equal_nan=True)
        else:
            tried, saved = tried + 1, saved + len(constants.saved)
    assert tried > 40 and saved > tried

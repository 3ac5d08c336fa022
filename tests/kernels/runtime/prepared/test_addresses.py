"""Repeated calls: memory that they share, and addresses in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.kernels.runtime.prepared.common import (
    AddOne,
    run,
    same_bits,
    written_calls,
)
from torch import Tensor

from evofeed.kernels.runtime import launching
from evofeed.kernels.runtime.backend import HAS_GLUON
from evofeed.kernels.runtime.prepared import Prepared

pytestmark = pytest.mark.gpu


class _AddOneToTiles(AddOne):
    """It gets the tiles of what it writes."""

    __name__ = "add_one_to_tiles"

    def __getitem__(self, grid: Any) -> Any:
        return lambda x, y, n, **meta: (self.run(*(0,) * 9, x.data_ptr(), y, n), self)[1]

    @staticmethod
    def run(*arguments: Any) -> None:
        x, y, n = arguments[9:]
        assert y.block_shape == [1, 8] and y.strides == [8, 1] and y.layout is not None
        AddOne.run(*(0,) * 9, x, y.base.data_ptr(), n)


@pytest.mark.skipif(not HAS_GLUON, reason="needs Triton 3.6")
def test_tiles_of_a_repeated_call_are_of_its_own_memory(by_address: AddOne) -> None:
    kernel = _AddOneToTiles()

    def compute(tensors: Sequence[Any]) -> list[Tensor | None]:
        (x,) = tensors
        y = torch.empty_like(x)
        launching.launch(kernel, (1,), (x[8:], launching.tiles_in(y.view(4, 8)[1:], 1, 8), 24), {})
        return [y[8:] * 2]

    call = Prepared(compute)
    for k in range(4):
        x = torch.arange(32.0) + k
        (found,) = run(call, [x])
        assert found is not None and torch.equal(found, (x[8:] + 1) * 2)
    assert len(written_calls()) == 1


def test_what_only_kernels_see_is_an_address_in_shared_memory(by_address: AddOne) -> None:
    def compute(tensors: Sequence[Any], times: int) -> list[Tensor | None]:
        (x,) = tensors
        for _ in range(times):  # x + times, each in memory of its own
            y = torch.empty_like(x)
            launching.launch(by_address, (1,), (x[2:], y[2:], x.numel() - 2), {})
            launching.launch(by_address, (1,), (x, y, 2), {})
            x = y
        last = x.view(2, -1) * 2
        return [last, None, tensors[0]]

    call = Prepared(compute)
    for k in range(4):
        x = torch.arange(8.0) + k
        made = run(call, [x], 5)
        same_bits(made, [2 * (x + 5).view(2, 4), None, x])
        assert made[2] is x
    (function,) = call._found.values()
    assert function.__code__.co_names.count("empty") == 1
    assert 512 in function.__code__.co_consts  # two tensors at a time, of the five
    assert 3 * 512 not in function.__code__.co_consts

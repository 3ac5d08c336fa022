"""How much blocks keep for the backward pass: within a budget, and the others recompute it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Budget:
    """Bytes that the blocks of a model may keep for their backward pass.

    Who comes first keeps: a block's first call with gradients, and any with more numbers than
    before, is run once more than needed to count what it keeps.

    Attributes:
        limit: bytes of all blocks together, each called once; 0 is none, infinity all of it.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        # the numbers of the largest inputs so far, and the bytes kept then, by block
        self._blocks: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Budget, (self.limit,)  # a copy's blocks are others

    def keeps(self, block: nn.Module, call: Callable[[], Any], tensors: Sequence[Tensor]) -> bool:
        """Whether a block keeps what the backward pass of such a call needs."""
        if self.limit in (0, math.inf):  # nothing to count
            return self.limit > 0
        size = sum(t.numel() for t in tensors)
        largest, kept = self._blocks.get(block, (-1, 0))
        if size > largest:
            self._blocks.pop(block, None)
            others = sum(each for _, each in self._blocks.values())
            kept = _kept(block, call, tensors) if others < self.limit else 0
            kept = kept if others + kept <= self.limit else 0
            self._blocks[block] = size, kept
        return kept > 0


def _kept(block: nn.Module, call: Callable[[], Any], tensors: Sequence[Tensor]) -> int:
    """Bytes that a call keeps for its backward pass besides its inputs and parameters."""
    given = {t.untyped_storage().data_ptr() for t in (*tensors, *block.parameters())}
    storages: dict[int, int] = {}

    def packed(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    devices = {t.device.index for t in tensors if t.is_cuda}
    with (
        torch.random.fork_rng(devices=devices),
        torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor),
    ):
        result = call()  # held until all is counted: freed memory would be counted twice
    del result
    return sum(size for place, size in storages.items() if place not in given)

"""Activation memory of blocks: those within a budget keep it, the others recompute."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Budget:
    """Bytes that the blocks of a model may keep for their backward pass.

    Blocks keep tensors in the order of their first calls. To count its bytes, a block's first
    call with gradients, and each call with larger inputs than before, is run one more time.

    Attributes:
        limit: bytes of all blocks together, each called once; 0 keeps nothing, infinity all.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        # elements of the largest inputs so far, and the bytes saved for them, by block
        self._blocks: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Budget, (self.limit,)  # a copied model has other blocks

    def keeps(self, block: nn.Module, call: Callable[[], Any], tensors: Sequence[Tensor]) -> bool:
        """True if a block keeps the tensors saved for the backward pass of such a call."""
        if self.limit in (0, math.inf):  # nothing to count
            return self.limit > 0
        size = sum(t.numel() for t in tensors)
        largest, saved = self._blocks.get(block, (-1, 0))
        if size > largest:
            self._blocks.pop(block, None)
            others = sum(nbytes for _, nbytes in self._blocks.values())
            saved = _saved_bytes(block, call, tensors) if others < self.limit else 0
            saved = saved if others + saved <= self.limit else 0
            self._blocks[block] = size, saved
        return saved > 0


def _saved_bytes(block: nn.Module, call: Callable[[], Any], tensors: Sequence[Tensor]) -> int:
    """Bytes that a call saves for its backward pass, without its inputs and parameters."""
    excluded = {t.untyped_storage().data_ptr() for t in (*tensors, *block.parameters())}
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
        result = call()  # alive until all is counted, so that no memory is reused
    del result
    return sum(size for address, size in storages.items() if address not in excluded)

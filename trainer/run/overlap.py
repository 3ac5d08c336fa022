"""The gradient averaged piece by piece while the backward pass still makes the rest of it.

The flat gradient is cut into a few pieces of neighbouring parameters. A piece is
sent as soon as its last parameter has its gradient, the pieces always in the same
order: from the end of the model to its beginning, as the backward pass goes. A
parameter without a gradient holds up its piece until the pass is over, no longer,
so nothing hangs.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from evofeed.trainer.run.flat import FlatOptimizer

_PIECE = 64 << 20
"""Bytes of a piece: large enough for the network's full speed, a sixth of the full model."""


class OverlappedMean:
    """Averages a flat gradient over all ranks during the backward pass.

    Args:
        model: whose parameters are views of the optimizer's buffer.
        nbytes: least size of a piece.
    """

    def __init__(
        self, model: nn.Module, optimizer: FlatOptimizer, world_size: int, nbytes: int = _PIECE
    ) -> None:
        self._size = world_size
        self._pieces: list[Tensor] = []
        self._works: list[Any] = []
        owners = self._cut(optimizer, nbytes)
        self._members = [owners.count(piece) for piece in range(len(self._pieces))]
        self._missing = list(self._members)
        for owner, parameter in zip(owners, optimizer.parameters(model), strict=True):
            parameter.register_post_accumulate_grad_hook(self._arrived(owner))  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Send what has not been sent, wait for all, and divide; after every backward pass."""
        while len(self._works) < len(self._pieces):
            self._send()
        for work in self._works:
            work.wait()
        self._works.clear()
        self._missing = list(self._members)
        for piece in self._pieces:
            piece.div_(self._size)

    def _cut(self, optimizer: FlatOptimizer, nbytes: int) -> list[int]:
        """Cut the buffer; returns the piece of every parameter, the last in the model being 0."""
        starts = [start for start, _, _ in optimizer.spans.values()]
        owners, end = [], optimizer.grad.numel()
        for start in reversed(starts):
            owners.append(len(self._pieces))
            if (end - start) * optimizer.grad.element_size() >= nbytes or start == 0:
                self._pieces.append(optimizer.grad[start:end])
                end = start
        return owners[::-1]

    def _arrived(self, owner: int) -> Any:
        def note(parameter: Tensor) -> None:
            self._missing[owner] -= 1
            while len(self._works) < len(self._pieces) and self._missing[len(self._works)] <= 0:
                self._send()

        return note

    def _send(self) -> None:
        piece = self._pieces[len(self._works)]
        self._works.append(dist.all_reduce(piece, async_op=True))

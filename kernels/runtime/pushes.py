"""Gradients and products that a kernel writes where another GPU reads them, beside its own memory.

An exchange behind a kernel waits for the kernel, and then for the wire. A kernel that writes what
the other GPU wants there as it goes leaves the exchange a flag to raise and a copy to make. Who
calls an operator says where the gradient of its input goes (`sending`); the last kernel of its
backward pass asks for it. What is said in vain does no harm: an exchange sends what it is given,
unless it is the very tensor that was written, unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

NO_ROWS = (None, None, 0, 0, 0, 0, 0, 0)
NO_WHOLE = (None, None, 0, 0)


class Memory(Protocol):
    """What is asked of the memory of two GPUs."""

    def span(self, whole: int, peer: bool) -> tuple[int, int]:
        """First position and length of a part of an axis: of this GPU's, or of the other's."""

    def written(self, x: Tensor, how: str, *axes: int) -> tuple[Any, ...]:
        """Kernel arguments: the other's slots, the count of exchanges, the length of a slot.

        x is now held to be written there, for an exchange of this kind.
        """


@dataclass(frozen=True, slots=True)
class Push:
    """What becomes of a tensor that is not made yet.

    Attributes:
        memory: what it goes through.
        shape: its shape.
        split, join: axes of the exchange, counted from the end; alike if it is a gather.
        length: of the whole along `join`.
    """

    memory: Memory
    shape: tuple[int, ...]
    split: int
    join: int
    length: int

    def rows(self, x: Tensor) -> tuple[Any, ...]:
        """For a kernel that writes x as rows `[M, C]`, in place of `NO_ROWS`."""
        split, join, last = (axis % len(self.shape) for axis in (self.split, self.join, -1))
        width, behind = self.shape[split], math.prod(self.shape[split + 1 : -1])
        others = math.prod(n for d, n in enumerate(self.shape) if d not in (split, join, last))
        first, length = self.memory.span(width, True)
        to = self.memory.span(self.length, False)[0] * others * length
        target = self.memory.written(x, "exchange", self.split, self.join)
        return *target, behind, width, first, length, to

    def whole(self, x: Tensor) -> tuple[Any, ...]:
        """For a kernel that writes x, of which the other GPU wants all, in place of `NO_WHOLE`."""
        along = x.numel() // self.shape[self.join]
        target = self.memory.written(x, "gather", self.join)
        return *target, self.memory.span(self.length, False)[0] * along


_said: list[Push | None] = []
_now: list[Push | None] = []


def sending(gradient: Push | None) -> AbstractContextManager[None]:
    """Says where the gradient of the first input of the operator called here will go."""
    return _last(_said, gradient)


def writing(push: Push | None) -> AbstractContextManager[None]:
    """The backward pass of an operator of which that was `said`."""
    return _last(_now, push) if push is not None or _now else _NOTHING


_NOTHING = nullcontext()


@contextmanager
def _last(stack: list[Push | None], push: Push | None) -> Iterator[None]:
    stack.append(push)
    try:
        yield
    finally:
        stack.pop()


def said() -> Push | None:
    """What is said of the operator that is called."""
    return _said[-1] if _said else None


def rows_of(x: Tensor) -> tuple[Any, ...]:
    """Arguments of the kernel that is to write x as rows; those of none are `NO_ROWS`."""
    push = _now[-1] if _now else None
    if push is None or x.numel() != math.prod(push.shape):
        return NO_ROWS
    return push.rows(x)

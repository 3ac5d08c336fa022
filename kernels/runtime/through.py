"""An op that hands its first input on: what is done with it later leaves its gradient to the op.

Autograd would add the two gradients of an input that is used twice in a kernel of its
own; the op adds the later one where it writes its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["through"]


def through(function: Any) -> Any:
    """A `torch.autograd.Function` that returns what `function` does, and its first input.

    Args:
        function: a `torch.autograd.Function` whose `backward` takes the later gradient of its
            first input (or None) as one more argument, to add it.
    """

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            ctx.others = len(arguments)
            return function.forward(ctx, x, *arguments), x

        @staticmethod
        def backward(ctx: Any, dout: Tensor | None, dx: Tensor | None) -> tuple[Tensor | None, ...]:
            if dout is None:
                return (dx, *(None for _ in range(ctx.others)))
            found: tuple[Tensor | None, ...] = function.backward(ctx, dout, dx)
            return found

    return Through

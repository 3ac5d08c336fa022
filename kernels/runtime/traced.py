"""Where `torch.compile` leaves the user's code and meets our operators.

Its tracer does not look into `call`: what runs there runs once, on fake tensors, and
the operators it calls are what the graph holds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.torch_library import named

__all__ = ["call"]


def _call(name: str, count: int, *present: tuple[int, Any]) -> Tensor:
    arguments = [None] * count
    for number, argument in present:
        arguments[number] = argument
    return named(name).call(*arguments)


call: Any = torch._dynamo.nonstrict_trace(_call)

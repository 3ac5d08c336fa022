"""What is raced, on made-up numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.runtime.tiles import Tile

BF16, DEVICE = torch.bfloat16, "cuda"
KINDS = {"": BF16}  # what products are raced in: {"": torch.float32} with --float32


class Case(NamedTuple):
    """One thing to race: where its winner goes, the candidates, and how to run one."""

    key: dict[str, Any]
    candidates: list[Any]
    make: Callable[[], Callable[[Any], Any]]


def rand(*shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype or KINDS[""])


def weights(C: int, N: int) -> list[Tensor]:
    return [rand(N, C, scale=C**-0.5), rand(N, dtype=torch.float32)]


def norm(C: int) -> list[Tensor]:
    return [torch.ones(C, device=DEVICE), torch.zeros(C, device=DEVICE)]


def tiles(text: str) -> list[Tile]:
    return [Tile(*map(int, item.split(","))) for item in text.split()]

"""Tile sizes per shape: what was fastest when it was measured, kept as data.

`choices.json` holds the winners of `benchmarks/kernels.py --tune`, each with
the card it was measured on. A shape that was never measured takes the entry of
the nearest size, and without any entry a default that fits every Hopper and
Ampere card.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

__all__ = ["AttentionTiles", "attention_tiles"]

Tile = tuple[int, int, int, int]


class AttentionTiles(NamedTuple):
    """(BLOCK_Q, BLOCK_K, warps, stages) of each attention kernel.

    `waves` is how many programs per multiprocessor the dk/dv kernel aims at;
    `reload_bias` whether it reads its bias tile for every row instead of keeping it.
    """

    forward: Tile = (128, 64, 4, 2)
    dkv: Tile = (128, 64, 8, 2)
    dq: Tile = (128, 64, 4, 2)
    waves: int = 1
    reload_bias: bool = False


@cache
def _saved() -> dict[str, Any]:
    path = Path(__file__).with_name("choices.json")
    return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


@cache
def attention_tiles(N: int, D: int, dtype: torch.dtype, has_bias: bool) -> AttentionTiles:
    """Tiles for rows of N positions and heads of width D."""
    if dtype is torch.float32:
        small = 16 if N <= 16 else 32
        return AttentionTiles((small, 32, 4, 1), (small, 32, 4, 1), (small, 32, 4, 1))
    width = max(16, 1 << (D - 1).bit_length())
    entries = [
        entry
        for entry in _saved().get("attention", [])
        if entry["has_bias"] == has_bias and max(16, entry["D"]) == width
    ]
    if not entries:
        return AttentionTiles()
    nearest = min(entries, key=lambda entry: abs(entry["N"] - N))
    tiles = {name: tuple(nearest[name]) for name in ("forward", "dkv", "dq")}
    return AttentionTiles(**tiles, waves=nearest["waves"], reload_bias=nearest["reload_bias"])  # type: ignore[arg-type]

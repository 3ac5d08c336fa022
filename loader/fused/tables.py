"""Residue tables side by side on a device, and the first column of each."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evofeed.loader.transforms.structure import FLOATS, INTEGERS

WIDTH: Final = 128
"""Columns of either table, padded with zeros."""


def column(name: str) -> int:
    """First column of a table."""
    tables = INTEGERS if name in INTEGERS else FLOATS
    names = list(tables)
    return sum(tables[other].shape[1] for other in names[: names.index(name)])


@functools.lru_cache(maxsize=64)
def residue_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """The integer and the float tables, `i32[21, 128]` and `f32[21, 128]`."""
    out = []
    for tables, dtype in ((INTEGERS, np.int32), (FLOATS, np.float32)):
        joined = np.concatenate(list(tables.values()), axis=1)
        padded = np.pad(joined, ((0, 0), (0, WIDTH - joined.shape[1]))).astype(dtype)
        out.append(torch.from_numpy(padded).to(device))
    return out[0], out[1]

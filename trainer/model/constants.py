"""Residue tables of `protein.residue_geometry` as tensors, made once per device and dtype."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from evofeed.protein import residue_geometry


@lru_cache(maxsize=256)
def table(name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The table called `name` there, on `device`; kept, so a step copies nothing from the host."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.as_tensor(getattr(residue_geometry, name), dtype=dtype).to(device)

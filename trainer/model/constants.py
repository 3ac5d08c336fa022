"""Residue tables of `protein.residue_geometry` as tensors, cached by device and dtype."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from evofeed.protein import residue_geometry


@lru_cache(maxsize=256)
def table(name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The table `name` on `device`; cached, so that a step copies nothing from the host."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.as_tensor(getattr(residue_geometry, name), dtype=dtype).to(device)

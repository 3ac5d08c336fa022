"""Activation checkpointing of one block: trade its activations for a second forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def checkpointed(block: Callable[..., Any], *args: Any, enabled: bool, **options: Any) -> Any:
    """`block(*args, **options)`, its activations recomputed in the backward pass when `enabled`."""
    if enabled and torch.is_grad_enabled():
        return checkpoint(block, *args, use_reentrant=False, **options)
    return block(*args, **options)

"""Shards to batches of features on the GPU: `FeatureLoader`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evofeed.loader.batch import openfold_batch
    from evofeed.loader.config import LoaderConfig
    from evofeed.loader.feature_loader import FeatureLoader

__all__ = ["FeatureLoader", "LoaderConfig", "openfold_batch"]

_WHERE = {
    "FeatureLoader": "evofeed.loader.feature_loader",
    "LoaderConfig": "evofeed.loader.config",
    "openfold_batch": "evofeed.loader.batch",
}


def __getattr__(name: str) -> Any:
    # Lazily: the reader process imports this package and must not pay for torch.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)

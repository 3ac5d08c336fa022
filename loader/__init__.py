"""Shards to batches of features on the GPU: `FeatureLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.loader.batch import openfold_batch
    from evofeed.loader.config import LoaderConfig
    from evofeed.loader.feature_loader import FeatureLoader

__all__ = ["FeatureLoader", "LoaderConfig", "openfold_batch"]

# Lazily: the reader process imports this package and must not pay for torch.
__getattr__ = names_from(
    __name__,
    {"FeatureLoader": "feature_loader", "LoaderConfig": "config", "openfold_batch": "batch"},
)

"""Shards to batches of features on the GPU: `FeatureLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.loader.batch import openfold_batch
    from evofeed.loader.catalog import ChainCatalog
    from evofeed.loader.config import AssemblyConfig, EntryConfig, LoaderConfig
    from evofeed.loader.entries.batch import boltz_batch, openfold3_batch, protenix_batch
    from evofeed.loader.feature_loader import FeatureLoader
    from evofeed.loader.from_record import assembly_batch, record_batch, sample_batch
    from evofeed.loader.hooks import ChainSample, LoaderHooks
    from evofeed.loader.plan import RunPlan

__all__ = [
    "AssemblyConfig",
    "ChainCatalog",
    "ChainSample",
    "EntryConfig",
    "FeatureLoader",
    "LoaderConfig",
    "LoaderHooks",
    "assembly_batch",
    "RunPlan",
    "openfold_batch",
    "openfold3_batch",
    "boltz_batch",
    "protenix_batch",
    "record_batch",
    "sample_batch",
]

# Lazily: the reader process and the service import this package and must not pay for torch.
__getattr__ = names_from(__name__)

"""Shards to batches of features on the GPU: `FeatureLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.loader.assembly.from_record import assembly_batch
    from evofeed.loader.assembly_config import AssemblyConfig
    from evofeed.loader.batch import openfold_batch
    from evofeed.loader.catalog import ChainCatalog
    from evofeed.loader.commands import bench_commands
    from evofeed.loader.config import LoaderConfig
    from evofeed.loader.feature_loader import FeatureLoader
    from evofeed.loader.from_record import record_batch, sample_batch
    from evofeed.loader.plan import RunPlan, plan_samples
    from evofeed.loader.transforms.structure import pseudo_beta

__all__ = [
    "AssemblyConfig",
    "ChainCatalog",
    "FeatureLoader",
    "LoaderConfig",
    "assembly_batch",
    "bench_commands",
    "RunPlan",
    "openfold_batch",
    "plan_samples",
    "pseudo_beta",
    "record_batch",
    "sample_batch",
]

# Lazily: the reader process and the service import this package and must not pay for torch.
__getattr__ = names_from(__name__)

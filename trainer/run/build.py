"""Builds the parts of a run from its configuration: model, loss, loader, validation."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from evofeed.base.errors import InputError
from evofeed.loader import LoaderConfig
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.formats.openfold_checkpoint import load_openfold_checkpoint, load_weights
from evofeed.trainer.losses import AlphaFoldLoss
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.losses import share_losses
from evofeed.trainer.parallel.parallelize import parallelize
from evofeed.trainer.run.checkpoint import checkpoint_in
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.passes import LossFunction
from evofeed.trainer.run.settings import parts_of
from evofeed.trainer.run.stream import FixedBatches, Loader


def set_precision(config: TrainConfig) -> None:
    """Turns TF32 and determinism on or off for this process.

    Runs in 16 bits use TF32 for their float32 products too: their gradients differ as much from
    those of a float32 run either way (`kernels/notes/blocks.md`). Points and distances never do.
    """
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(config.deterministic)  # imports torch's compiler: 2 s


def build_model(
    config: TrainConfig,
    device: torch.device,
    weights: Path | None = None,
    axis: Axis | None = None,
) -> tuple[nn.Module, LossFunction]:
    """Model and loss of a run; the same weights for the same seed on every rank.

    Args:
        device: device of the model.
        weights: start from these instead of random weights: a run's or a checkpoint's folder
            (its averaged weights), or a file that `load_openfold_checkpoint` takes.
        axis: the ranks that share a sample, if any do.

    Raises:
        CheckpointError: `weights` cannot be read or are of another model.
    """
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    parts = parts_of(config)
    model = AlphaFold(parts.model)
    if weights is not None and weights.is_dir():
        checkpoint = checkpoint_in(weights)
        load_weights(model, checkpoint.tensors("ema"), str(checkpoint.path))
    elif weights is not None:
        load_openfold_checkpoint(model, weights)
    model = model.to(device)
    if config.kernels == "fused" and device.type == "cuda":
        from evofeed.kernels import to_fused

        model = to_fused(model)
    loss = AlphaFoldLoss(parts.loss)
    if axis is not None:
        parallelize(model, axis)
        share_losses(loss, axis)
    return model, loss


def build_loader(config: TrainConfig, dataset: Any, world: World) -> Loader:
    """This rank's loader of a dataset, or of a mixture of several; datasets may be URIs.

    A ready loader is returned as it is.

    Raises:
        InputError: there are not as many shares as datasets.
    """
    from evofeed.loader import FeatureLoader

    if isinstance(dataset, Loader):
        return FixedBatches(dataset, config.fixed_batches) if config.fixed_batches else dataset
    datasets = dataset if isinstance(dataset, list | tuple) else [dataset]
    shares = config.shares or (1.0,) * len(datasets)
    if len(shares) != len(datasets):
        raise InputError(
            f"{len(shares)} shares for {len(datasets)} datasets: give one for each, in their order"
        )
    settings = parts_of(config, world.readers).loader
    samples = [_samples_of(dataset, settings) for dataset in datasets]
    loader: Loader = FeatureLoader(
        list(zip(samples, shares, strict=True)),
        settings,
        rank=world.reader,
        world_size=world.readers,
        seed=config.seed,
        device=world.device,
        prefetch=config.prefetch,
    )
    return FixedBatches(loader, config.fixed_batches) if config.fixed_batches else loader


def build_validation(
    config: TrainConfig,
    model: nn.Module,
    validation: Any,
    loader: Loader,
    world: World,
    picture: Path | None = None,
) -> Callable[[], dict[str, float]] | None:
    """A function that measures the model on held-out chains, or else on fixed batches."""
    from evofeed.trainer.run.validation import held_out, validator

    if validation is not None:
        samples = _samples_of(validation, parts_of(config).loader)
        chains = held_out(config, samples, world)
        return validator(config, model, chains, world, picture)
    if isinstance(loader, FixedBatches):
        return validator(config, model, loader.batches, world, picture)
    return None


def _samples_of(dataset: Any, settings: LoaderConfig) -> Any:
    """A dataset's complexes if the run is of complexes and the dataset has some, else its chains.

    Chains of a dataset without complexes count as complexes of one chain, as in
    AlphaFold-Multimer's distillation set.
    """
    from evofeed.store import Dataset, address_and_ref

    opened = Dataset.open(*address_and_ref(dataset)) if isinstance(dataset, str) else dataset
    if settings.assemblies is None or not isinstance(opened, Dataset) or not opened.assemblies:
        return opened
    return opened.assemblies

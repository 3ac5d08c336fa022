"""Padded tensors of a batch: allocation, filling with samples' features, OpenFold's layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import Crop
from evofeed.loader.features import ChainTensors, constant_features, recycle_features
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.features import BATCH, SUPERVISED, Feature

_ALIGN: Final = 512
"""Bytes; the alignment of CUDA's own allocations."""

_STAGE: Final = {feature.name: feature.stage for feature in BATCH}


def empty_batch(
    config: LoaderConfig,
    *,
    num_res: int,
    batch_size: int,
    recycles: int,
    device: torch.device,
    zeroed: bool = True,
    table: tuple[Feature, ...] = BATCH,
) -> dict[str, Tensor]:
    """Every feature of the table, `BATCH` or `ASSEMBLY_BATCH`: `[B, ...]`, `[R, B, ...]` for those
    of a recycle.

    `num_res` includes padding; `recycles` (R) is the recycling iterations plus one. Tensors are
    `zeroed`, as `put` requires, or uninitialized.
    """
    make = torch.zeros if zeroed else torch.empty
    batch: dict[str, Tensor] = {}
    blocks, views = _layout(table, config, num_res, batch_size, recycles)
    memory = {dtype: make(size, dtype=dtype, device=device) for dtype, size in blocks.items()}
    for view in views:
        batch[view.name] = memory[view.dtype].as_strided(view.shape, view.strides, view.offset)
    return batch


class _View(NamedTuple):
    """View of a feature in the block of memory of its dtype."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@functools.lru_cache(maxsize=64)
def _layout(
    table: tuple[Feature, ...], config: LoaderConfig, num_res: int, batch_size: int, recycles: int
) -> tuple[dict[torch.dtype, int], tuple[_View, ...]]:
    """Sizes of the blocks, one per dtype (two allocations, not sixty), and views of features."""
    sizes = {
        "L": num_res,
        "S": config.max_msa_clusters,
        "E": config.max_extra_msa,
        "Tm": config.max_templates,
    }
    block_sizes: dict[torch.dtype, int] = {}
    views = []
    for feature in table:
        if feature.name not in SUPERVISED or config.supervised:
            lead = (recycles, batch_size) if feature.stage == "recycle" else (batch_size,)
            shape = lead + feature.shape(sizes)
            strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
            dtype: torch.dtype = getattr(torch, feature.dtype)
            offset = block_sizes.get(dtype, 0)
            views.append(_View(feature.name, dtype, shape, strides, offset))
            end = offset + math.prod(shape)
            block_sizes[dtype] = end + -end % (_ALIGN // dtype.itemsize)
    return block_sizes, tuple(views)


def blocks_of(batch: dict[str, Tensor]) -> list[Tensor]:
    """One tensor in each block of memory that `empty_batch` allocated."""
    return list({tensor.dtype: tensor for tensor in batch.values()}.values())


def put(batch: dict[str, Tensor], features: dict[str, Tensor], *index: int) -> None:
    """Writes one sample's features into the start of its slice, `[b]` or `[r, b]`."""
    for name, value in features.items():
        target = batch[name][index]
        for dim, size in enumerate(value.shape):
            if target.shape[dim] != size:  # each view costs host time
                target = target.narrow(dim, 0, size)
        target.copy_(value)


def stack_padded(values: Sequence[Tensor]) -> Tensor:
    """Stack of values padded with zeros along their first axis; a single one is not copied."""
    return values[0][None] if len(values) == 1 else pad_sequence([*values], batch_first=True)


def fill_sample(
    batch: dict[str, Tensor],
    number: int,
    chain: ChainTensors,
    crop: Crop,
    draws: Sequence[RecycleDraws],
    config: LoaderConfig,
    *,
    use_clamped_fape: float,
) -> None:
    """Computes a sample's features and writes them into its slice of a zeroed batch.

    `draws` has the random decisions about the MSA, one for each recycle.
    """
    put(batch, constant_features(chain, crop, config), number)
    scalars = {
        "seq_length": crop.length,
        "resolution": chain.resolution,
        "is_distillation": float(chain.is_distillation),
        "use_clamped_fape": use_clamped_fape,
    }
    for name, value in scalars.items():
        batch[name][number].fill_(value)
    for recycle, recycle_draws in enumerate(draws):
        put(batch, recycle_features(chain, crop, recycle_draws, config), recycle, number)


def openfold_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The dict that OpenFold's model and loss take: every tensor has the recycling axis last.

    Features that are the same in all recycles are expanded, not copied; those of
    a recycle are a view with the axis moved. `no_recycling_iters` and
    `batch_idx` are added as in OpenFold.
    """
    recycles, batch_size = batch["msa_feat"].shape[:2]
    device = batch["msa_feat"].device
    out = {
        name: value.movedim(0, -1)
        if _STAGE.get(name) == "recycle"
        else value[..., None].expand(*value.shape, recycles)
        for name, value in batch.items()
    }
    iters = torch.full((batch_size, recycles), recycles - 1, dtype=torch.int64, device=device)
    index = torch.arange(batch_size, device=device)[:, None].expand(batch_size, recycles)
    return {**out, "no_recycling_iters": iters, "batch_idx": index}

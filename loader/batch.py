"""Features of samples into the padded tensors of a batch, and OpenFold's own layout."""

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
"""Bytes; what CUDA's own allocations are aligned to."""

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

    `num_res` counts padding in; `recycles` (R) is one more than the recycling iterations. It is
    `zeroed`, as `put` wants it, or full of anything.
    """
    make = torch.zeros if zeroed else torch.empty
    batch: dict[str, Tensor] = {}
    blocks, places = _layout(table, config, num_res, batch_size, recycles)
    memory = {dtype: make(size, dtype=dtype, device=device) for dtype, size in blocks.items()}
    for place in places:
        batch[place.name] = memory[place.dtype].as_strided(place.shape, place.strides, place.at)
    return batch


class _Place(NamedTuple):
    """Where a feature is in the one block of memory of its dtype."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int


@functools.lru_cache(maxsize=64)
def _layout(
    table: tuple[Feature, ...], config: LoaderConfig, num_res: int, batch_size: int, recycles: int
) -> tuple[dict[torch.dtype, int], tuple[_Place, ...]]:
    """One block of memory a dtype: two allocations and fills, not sixty. Its size, and places."""
    sizes = {
        "L": num_res,
        "S": config.max_msa_clusters,
        "E": config.max_extra_msa,
        "Tm": config.max_templates,
    }
    used: dict[torch.dtype, int] = {}
    places = []
    for feature in table:
        if feature.name not in SUPERVISED or config.supervised:
            lead = (recycles, batch_size) if feature.stage == "recycle" else (batch_size,)
            shape = lead + feature.shape(sizes)
            strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
            dtype: torch.dtype = getattr(torch, feature.dtype)
            at = used.get(dtype, 0)
            places.append(_Place(feature.name, dtype, shape, strides, at))
            end = at + math.prod(shape)
            used[dtype] = end + -end % (_ALIGN // dtype.itemsize)
    return used, tuple(places)


def blocks_of(batch: dict[str, Tensor]) -> list[Tensor]:
    """One tensor in each block of memory that `empty_batch` took."""
    return list({tensor.dtype: tensor for tensor in batch.values()}.values())


def put(batch: dict[str, Tensor], features: dict[str, Tensor], *index: int) -> None:
    """Write one sample's features into the low corner of its place, `[b]` or `[r, b]`."""
    for name, value in features.items():
        place = batch[name][index]
        for dim, size in enumerate(value.shape):
            if place.shape[dim] != size:  # every view costs the host more than it looks
                place = place.narrow(dim, 0, size)
        place.copy_(value)


def stack_padded(values: Sequence[Tensor]) -> Tensor:
    """Padded with zeros to the longest along their first axis, and stacked; one is not copied."""
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
    """Make a sample's features and write them into its place of a zeroed batch.

    `draws` has the decisions about the MSA, one for each recycle.
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
    for recycle, drawn in enumerate(draws):
        put(batch, recycle_features(chain, crop, drawn, config), recycle, number)


def openfold_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The dict OpenFold's model and loss take: recycling axis last, everything in it.

    Features that are the same in all recycles are expanded, not copied; those of
    a recycle are a view with the axis moved. `no_recycling_iters` and
    `batch_idx` are added as OpenFold adds them.
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

"""Batches of whole entries: features of every sample, and the dict a project's step takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from evofeed.loader.batch import stack_padded
from evofeed.loader.config import EntryConfig
from evofeed.loader.entries.reading import EntrySlab, PackedArray, PackedSample
from evofeed.loader.views.boltz.features import boltz_features
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.protenix.features import protenix_features

_FEATURES: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "openfold3": openfold3_features,
    "boltz": boltz_features,
    "protenix": protenix_features,
}
_ROUND: Final = 1 << 25
"""Zeros on a GPU are so many bytes or a multiple: the allocator finds one of a size again."""


def entry_batch(
    slabs: Iterable[tuple[EntrySlab, Tensor]], config: EntryConfig
) -> tuple[dict[str, Any], list[Tensor]]:
    """Features of the samples of slots, from their bytes on the device, and of what they are.

    With the memory that all of them are views of.
    """
    make = _FEATURES[config.project]
    batch: dict[str, Any] = {"samples": [], "entry_id": [], "chains": []}
    blocks = []
    for slab, data in slabs:
        laid, zeros = unpack_sample(slab.where, data)
        batch["samples"].append(make(laid, config.view))
        batch["entry_id"].append(slab.entry)
        batch["chains"].append(slab.datapoint)
        blocks += [data, zeros]
    return batch, blocks


def unpack_sample(where: PackedSample, data: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a slot's bytes on any device, `u8[nbytes]`; the host's arrays as they are.

    And the memory of the features of zeros and few numbers.
    """
    size = where.zero_nbytes + (-where.zero_nbytes % _ROUND if data.is_cuda else 0)
    zeros = torch.zeros(-(-size // 8), dtype=torch.int64, device=data.device)
    tensors = dict(_views(where.arrays, data))
    zeros.view(torch.int32).scatter_(0, tensors.pop("_at"), tensors.pop("_words"))
    tensors.update(_views(where.zeros, zeros.view(torch.uint8)))
    tensors.update((name, torch.from_numpy(value)) for name, value in where.host.items())
    return tensors, zeros


def _views(arrays: tuple[PackedArray, ...], data: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The arrays at their places in these bytes, by name."""
    for dtype, group in groupby(arrays, lambda array: array.dtype):
        mine = list(group)
        kind = torch.from_numpy(np.zeros(0, dtype)).dtype
        values = data[mine[0].offset : mine[-1].offset + mine[-1].nbytes].view(kind)
        parts = values.split([math.prod(array.shape) for array in mine])  # type: ignore[no-untyped-call]
        for array, part in zip(mine, parts, strict=True):
            yield array.name, part if len(array.shape) == 1 else part.view(array.shape)


def on_device(slab: EntrySlab, device: torch.device) -> Tensor:
    """Bytes of a sample that no slot could hold."""
    return torch.frombuffer(bytearray(slab.beside), dtype=torch.uint8).to(device)


def openfold3_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that OpenFold3's training step takes, of a batch of `LoaderConfig.openfold3()`."""
    chains = [list(names) for names in batch["chains"]]
    return {
        **stacked(batch["samples"]),
        "pdb_id": [name.rpartition("-")[0] or name for name in batch["entry_id"]],
        "preferred_chain_or_interface": [one[0] if len(one) == 1 else one for one in chains],
    }


def stacked(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Samples padded with zeros to the longest along their first axis, and stacked.

    A last axis of one element goes, as in OpenFold3; texts and atom orders stay lists.
    """
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(first, Tensor):
            batch[name] = stack_padded(values).squeeze(-1)
        elif isinstance(first, dict) and name != "ref_space_uid_to_perm":
            batch[name] = stacked(values)
        else:
            batch[name] = values
    return batch


_LISTED: Final = frozenset(
    "all_coords all_resolved_mask crop_to_all_atom_map chain_symmetries amino_acids_symmetries "
    "ligand_symmetries".split()
)
"""Boltz's features that stay a list, one a sample."""


def boltz_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Boltz 1's training step takes, of a batch of `LoaderConfig.boltz()`.

    `r_set_to_rep_atom`, whose rows vary, is padded with zeros to the longest.
    """
    samples = batch["samples"]
    values = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {
        name: those if name in _LISTED else stack_padded(those) for name, those in values.items()
    }


def protenix_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Protenix's training step takes, of a batch of `LoaderConfig.protenix()`.

    Raises:
        ValueError: there are several samples, or none: Protenix trains on one a GPU.
    """
    samples: list[dict[str, Any]] = batch["samples"]
    if len(samples) != 1:
        raise ValueError(f"Protenix takes 1 sample a batch, not {len(samples)}: set batch_size=1")
    return samples[0]

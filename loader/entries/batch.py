"""Batches of whole entries: features of every sample, and the dict a project's step takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evofeed.loader.config import EntryConfig
from evofeed.loader.entries.reading import EntrySlab, PackedSample
from evofeed.loader.views.boltz.features import boltz_features
from evofeed.loader.views.openfold3.features import openfold3_features, stacked
from evofeed.loader.views.protenix.features import protenix_features

_FEATURES: Final[dict[str, tuple[Callable[..., dict[str, Any]], torch.dtype]]] = {
    "openfold3": (openfold3_features, torch.int32),
    "boltz": (boltz_features, torch.int64),
    "protenix": (protenix_features, torch.int64),
}
"""And the dtype of whole numbers there."""


def entry_batch(slabs: Iterable[tuple[EntrySlab, Tensor]], config: EntryConfig) -> dict[str, Any]:
    """Features of the samples of slots, from their bytes on the device, and of what they are."""
    make, whole = _FEATURES[config.project]
    batch: dict[str, Any] = {"samples": [], "entry_id": [], "chains": []}
    for slab, data in slabs:
        batch["samples"].append(make(unpack_sample(slab.where, data, whole), config.view))
        batch["entry_id"].append(slab.entry)
        batch["chains"].append(slab.datapoint)
    return batch


def unpack_sample(where: PackedSample, data: Tensor, whole: torch.dtype) -> dict[str, Tensor]:
    """Tensors of a slot's bytes on any device, `u8[nbytes]`; the host's arrays as they are.

    Narrower whole numbers become `whole`, all of a dtype at once: a kernel for each array would
    take the host longer than all that is made of them takes a GPU.
    """
    tensors = {name: torch.from_numpy(value) for name, value in where.host.items()}
    for dtype, group in groupby(where.arrays, lambda array: array.dtype):
        arrays = list(group)
        empty = torch.from_numpy(np.zeros(0, dtype))
        values = data[arrays[0].offset : arrays[-1].offset + arrays[-1].nbytes].view(empty.dtype)
        if np.dtype(dtype).kind in "iu" and empty.itemsize < whole.itemsize:
            values = values.to(whole)
        parts = values.split([math.prod(array.shape) for array in arrays])  # type: ignore[no-untyped-call]
        for array, part in zip(arrays, parts, strict=True):
            tensors[array.name] = part if len(array.shape) == 1 else part.view(array.shape)
    return tensors


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
        name: those if name in _LISTED else pad_sequence(those, batch_first=True)
        for name, those in values.items()
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

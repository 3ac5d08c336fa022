"""Batches of whole entries: features of every sample, and the dict a project's step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from evofeed.loader.config import EntryConfig
from evofeed.loader.entries.reading import EntrySlab
from evofeed.loader.views.boltz import features as boltz
from evofeed.loader.views.openfold3 import features as openfold3
from evofeed.loader.views.packing import unpack_sample
from evofeed.loader.views.protenix import features as protenix

_FEATURES: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "openfold3": openfold3.openfold3_features,
    "boltz": boltz.boltz_features,
    "protenix": protenix.protenix_features,
}


def entry_batch(slabs: Iterable[tuple[EntrySlab, Tensor]], config: EntryConfig) -> dict[str, Any]:
    """Features of the samples of slots, from their bytes on the device, and of what they are."""
    make = _FEATURES[config.project]
    batch: dict[str, Any] = {"samples": [], "entry_id": [], "chains": []}
    for slab, data in slabs:
        batch["samples"].append(make(unpack_sample(slab.where, data), config.view))
        batch["entry_id"].append(slab.entry)
        batch["chains"].append(slab.datapoint)
    return batch


def on_device(slab: EntrySlab, device: torch.device) -> Tensor:
    """Bytes of a sample that no slot could hold."""
    return torch.frombuffer(bytearray(slab.beside), dtype=torch.uint8).to(device)


def openfold3_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that OpenFold3's training step takes, of a batch of `LoaderConfig.openfold3()`."""
    chains = [list(names) for names in batch["chains"]]
    return {
        **openfold3.openfold3_batch(batch["samples"]),
        "pdb_id": [name.rpartition("-")[0] or name for name in batch["entry_id"]],
        "preferred_chain_or_interface": [one[0] if len(one) == 1 else one for one in chains],
    }


def boltz_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Boltz 1's training step takes, of a batch of `LoaderConfig.boltz()`."""
    return boltz.boltz_batch(batch["samples"])


def protenix_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Protenix's training step takes, of a batch of `LoaderConfig.protenix()`."""
    return protenix.protenix_batch(batch["samples"])

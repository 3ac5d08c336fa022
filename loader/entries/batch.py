"""Batches of whole entries: features of every sample, and the dict a project's step takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from evofeed.loader.entries.projects import batch_of, features_of
from evofeed.loader.entries.reading import EntrySlab
from evofeed.loader.entries_config import EntryConfig
from evofeed.loader.views.packing import unpack_sample


def entry_batch(slabs: Iterable[tuple[EntrySlab, Tensor]], config: EntryConfig) -> dict[str, Any]:
    """Features of the samples, and which entries and chains they are of.

    Args:
        slabs: what slots hold, and their bytes on the device.
        config: project, sizes and faults.
    """
    make = features_of(config.project)
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
        **batch_of("openfold3")(batch["samples"]),
        "pdb_id": [name.rpartition("-")[0] or name for name in batch["entry_id"]],
        "preferred_chain_or_interface": [one[0] if len(one) == 1 else one for one in chains],
    }


def boltz_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Boltz 1's training step takes, of a batch of `LoaderConfig.boltz()`."""
    return batch_of("boltz")(batch["samples"])


def protenix_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Protenix's training step takes, of a batch of `LoaderConfig.protenix()`."""
    return batch_of("protenix")(batch["samples"])

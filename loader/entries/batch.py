"""Batches of whole entries: features of every sample, and the dict a project's step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from torch import Tensor

from evofeed.loader.batch import stack_padded
from evofeed.loader.config import EntryConfig
from evofeed.loader.views.boltz.features import boltz_features
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.protenix.features import protenix_features

_FEATURES: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "openfold3": openfold3_features,
    "boltz": boltz_features,
    "protenix": protenix_features,
}


def entry_batch(
    samples: Iterable[tuple[dict[str, Tensor], tuple[str, tuple[str, ...]]]], config: EntryConfig
) -> dict[str, Any]:
    """Features of each sample, with its entry id and the names of the chains it was drawn for.

    A sample is the tensors of its plan on the device, and those names.
    """
    make_features = _FEATURES[config.project]
    batch: dict[str, Any] = {"samples": [], "entry_id": [], "chains": []}
    for laid, (entry_id, chain_names) in samples:
        batch["samples"].append(make_features(laid, config.view))
        batch["entry_id"].append(entry_id)
        batch["chains"].append(chain_names)
    return batch


def openfold3_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that OpenFold3's training step takes, of a batch of `LoaderConfig.openfold3()`."""
    chains = [names[0] if len(names) == 1 else list(names) for names in batch["chains"]]
    return {
        **stacked(batch["samples"]),
        "pdb_id": [name.rpartition("-")[0] or name for name in batch["entry_id"]],
        "preferred_chain_or_interface": chains,
    }


def stacked(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Samples padded with zeros to the longest along their first axis, and stacked.

    A last axis of one element is squeezed, as in OpenFold3; strings and atom orders stay lists.
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
"""Boltz's features that stay lists of samples."""


def boltz_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Boltz 1's training step takes, of a batch of `LoaderConfig.boltz()`.

    `r_set_to_rep_atom`, whose rows vary, is padded with zeros to the longest.
    """
    samples = batch["samples"]
    values = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {
        name: listed if name in _LISTED else stack_padded(listed) for name, listed in values.items()
    }


def protenix_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The dict that Protenix's training step takes, of a batch of `LoaderConfig.protenix()`.

    Raises:
        ValueError: the batch does not have one sample, as Protenix requires.
    """
    samples: list[dict[str, Any]] = batch["samples"]
    if len(samples) != 1:
        raise ValueError(f"Protenix takes 1 sample a batch, not {len(samples)}: set batch_size=1")
    return samples[0]

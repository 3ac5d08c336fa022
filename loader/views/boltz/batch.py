"""Boltz samples as the batch its training step takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

LISTED: Final = frozenset(
    "all_coords all_resolved_mask crop_to_all_atom_map chain_symmetries amino_acids_symmetries "
    "ligand_symmetries".split()
)  # fmt: skip
"""Features that stay a list, one a sample."""


def boltz_batch(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Samples stacked; `r_set_to_rep_atom`, whose rows vary, padded with zeros to the longest."""
    batch: dict[str, Any] = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        batch[name] = values if name in LISTED else _stacked(values)
    return batch


def _stacked(values: Sequence[Tensor]) -> Tensor:
    longest = max(len(value) for value in values)
    sizes = ((0, 0) * (value.dim() - 1) + (0, longest - len(value)) for value in values)
    return torch.stack([pad(value, size) for value, size in zip(values, sizes, strict=True)])

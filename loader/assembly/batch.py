"""Features of complexes in the padded tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def with_truth(batch: dict[str, Tensor], truths: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """The batch and, in `gt_features`, each sample's whole truth, padded to the longest."""
    if not all(truths):
        return dict(batch)
    if len(truths) == 1:  # thirty copies less
        return {**batch, "gt_features": {name: value[None] for name, value in truths[0].items()}}
    longest = max(len(truth["aatype"]) for truth in truths)
    padded = {
        name: torch.stack(
            [_padded(truth[name], longest) for truth in truths]  # zeros, as everywhere
        )
        for name in truths[0]
    }
    return {**batch, "gt_features": padded}


def _padded(value: Tensor, length: int) -> Tensor:
    if len(value) == length:
        return value
    return torch.cat([value, value.new_zeros(length - len(value), *value.shape[1:])])

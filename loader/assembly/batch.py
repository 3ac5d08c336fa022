"""Features of complexes in the padded tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def with_truth(batch: dict[str, Tensor], truths: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """The batch and, in `gt_features`, each sample's whole truth, padded to the longest."""
    if not all(truths):
        return dict(batch)
    if len(truths) == 1:  # thirty copies less
        return {**batch, "gt_features": {name: value[None] for name, value in truths[0].items()}}
    padded = {
        name: pad_sequence([truth[name] for truth in truths], batch_first=True)
        for name in truths[0]
    }
    return {**batch, "gt_features": padded}

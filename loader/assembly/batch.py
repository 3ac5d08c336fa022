"""Features of complexes in the padded tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.features import ASSEMBLY_BATCH, SUPERVISED
from evofeed.loader.config import LoaderConfig

__all__ = ["empty_assembly_batch", "with_truth"]


def empty_assembly_batch(
    config: LoaderConfig,
    *,
    num_res: int,
    batch_size: int,
    recycles: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """Zeros for every feature of the table: `[B, ...]`, and `[R, B, ...]` for those of a recycle.

    Args:
        config: gives the number of clusters, extra rows and templates.
        num_res: residues, padding included.
        batch_size: samples (B).
        recycles: recycling iterations that run, plus one (R).
        device: where the batch is.
    """
    sizes = {
        "L": num_res,
        "S": config.max_msa_clusters,
        "E": config.max_extra_msa,
        "Tm": config.max_templates,
    }
    batch = {}
    for feature in ASSEMBLY_BATCH:
        if feature.name in SUPERVISED and not config.supervised:
            continue
        lead = (recycles, batch_size) if feature.stage == "recycle" else (batch_size,)
        dtype: torch.dtype = getattr(torch, feature.dtype)
        batch[feature.name] = torch.zeros(lead + feature.shape(sizes), dtype=dtype, device=device)
    return batch


def with_truth(batch: dict[str, Tensor], truths: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """The batch and, in `gt_features`, each sample's whole truth, padded to the longest."""
    if not all(truths):
        return dict(batch)
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

"""Features of complexes in the padded tensors of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.features import ASSEMBLY_BATCH, SUPERVISED
from evofeed.loader.batch import put
from evofeed.loader.config import LoaderConfig

__all__ = ["empty_assembly_batch", "put_assembly"]


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


put_assembly = put

"""Clusters of alignment rows as AF2 defines them, one centre at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Integer
from evofeed.protein.residues import GAP


def nearest_clusters_reference(
    centres: Integer[Tensor, "M L"], extra: Integer[Tensor, "E L"]
) -> Integer[Tensor, " E"]:
    """The definition, one centre at a time: the oracle of `nearest_clusters`."""
    best = torch.full((extra.shape[0],), -1, device=extra.device)
    cluster = torch.zeros_like(best)
    for m, centre in enumerate(centres):
        agreement = ((extra == centre) & (centre < GAP)).sum(-1)
        better = agreement > best
        best = torch.where(better, agreement, best)
        cluster = torch.where(better, m, cluster)
    return cluster

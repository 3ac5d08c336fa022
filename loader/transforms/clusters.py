"""Assignment of extra rows to their nearest cluster centre, and cluster profiles.

AF2 SI 1.2.7: every extra row joins the centre it agrees with in most columns,
where gaps and masked cells agree with nothing; ties go to the first centre.
Agreements are integers, computed as a matrix product of one-hot codes whose
partial sums are exact in the dtype used, so every device and chunking gives
the same assignment.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Integer
from evofeed.loader.transforms.msa import NUM_CODES, one_hot
from evofeed.protein.residues import GAP

_EXACT_COLUMNS: Final = 2048
"""float16 represents every integer up to this one."""
_CHUNK_BYTES: Final = 128 << 20
"""Maximum size of a one-hot matrix."""


def nearest_clusters(
    centres: Integer[Tensor, "M L"], extra: Integer[Tensor, "E L"]
) -> Integer[Tensor, " E"]:
    """`i64[E]` the first centre with the most equal residues, for each extra row."""
    counts = agreements(centres, extra)
    # The centre's number, counted from the end, breaks ties, not the order of a kernel.
    last = counts.shape[1] - 1
    number = torch.arange(last, -1, -1, device=counts.device, dtype=torch.int32)
    best = (counts * (last + 1) + number).amax(1)
    return (last - best % (last + 1)).to(torch.int64)


def agreements(
    centres: Integer[Tensor, "M L"], extra: Integer[Tensor, "E L"]
) -> Integer[Tensor, "E M"]:
    """`i32` number of columns in which an extra row and a centre have the same residue."""
    dtype = torch.float16 if centres.is_cuda else torch.float32
    num_res = centres.shape[1]
    width = min(num_res, _EXACT_COLUMNS)
    rows = max(64, _CHUNK_BYTES // (width * GAP * (2 if centres.is_cuda else 4)))
    shape = extra.shape[0], centres.shape[0]
    counts = torch.zeros(shape, dtype=torch.int32, device=extra.device)
    for first in range(0, extra.shape[0], rows):
        for start in range(0, num_res, width):
            cut = slice(start, start + width)
            # gap and [MASK] are all zeros
            extra_hot = one_hot(extra[first : first + rows, cut], GAP, dtype).flatten(1)
            centre_hot = one_hot(centres[:, cut], GAP, dtype).flatten(1)
            counts[first : first + rows] += (extra_hot @ centre_hot.T).to(torch.int32)
    return counts


def summarize_clusters(
    centres: Integer[Tensor, "M L"],
    centre_deletions: Tensor,
    extra: Integer[Tensor, "E L"],
    extra_deletions: Tensor,
    cluster: Integer[Tensor, " E"],
) -> tuple[Float[Tensor, "M L 23"], Float[Tensor, "M L"]]:
    """`cluster_profile` and `cluster_deletion_mean`: means over centre and members.

    The sums are of integers below 2**24 in float32: exact in any order, and so
    deterministic with atomic adds on a GPU.
    """
    num_clusters, num_res = centres.shape
    size = torch.zeros(num_clusters, device=centres.device)
    size.index_add_(0, cluster, torch.ones(cluster.shape[0], device=centres.device))
    total = (size + (1e-6 + 1.0))[:, None]
    codes = centres.to(torch.int64)
    column = torch.arange(num_res, device=centres.device)
    profile = torch.zeros(num_clusters * num_res * NUM_CODES, device=centres.device)
    cell = (cluster[:, None] * num_res + column) * NUM_CODES + extra
    profile.index_add_(0, cell.flatten(), torch.ones(cell.numel(), device=centres.device))
    profile = profile.view(num_clusters, num_res, NUM_CODES)
    profile.scatter_add_(
        -1, codes[..., None], torch.ones_like(codes[..., None], dtype=torch.float32)
    )
    deletions = centre_deletions.to(torch.float32).index_add(
        0, cluster, extra_deletions.to(torch.float32)
    )
    return profile / total[..., None], deletions / total

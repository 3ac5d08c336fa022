"""Alignment rows to the model's MSA features (AF2 SI 1.2.6-1.2.9).

Each function is one step and takes its random draws as arguments. `N` rows of
the chain, `M` cluster centres, `E` extra rows, `L` residues; codes are restypes
0-20, gap 21, [MASK] 22, of any integer dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.protein.residues import GAP, MASK, RESTYPE_NUM

NUM_CODES: Final = MASK + 1


def block_size(num_rows: int, fraction: float) -> int:
    """Rows in one deleted block: `floor(N * fraction)` in float32, as in AF2."""
    return int(np.floor(np.float32(num_rows) * np.float32(fraction)))


def remaining_spans(num_rows: int, starts: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Spans `[from, to)` of rows after deleting blocks of `size` rows from each start.

    The query, row 0, is never deleted. Computed on the host: the number of rows
    determines all later shapes, which must be known without synchronizing with the GPU.
    """
    spans, end = [(0, 1)], 1
    for start in sorted(min(start, num_rows) for start in starts) if size else ():
        if start > end:
            spans.append((end, start))
        end = max(end, start + size)
    if end < num_rows:
        spans.append((end, num_rows))
    return spans


def mask_msa(
    msa: Integer[Tensor, "M L"], position: Bool[Tensor, "M L"], replacement: Integer[Tensor, "M L"]
) -> tuple[Integer[Tensor, "M L"], Float[Tensor, "M L"]]:
    """The MSA with the positions in the mask replaced, and `bert_mask`."""
    return torch.where(position, replacement.to(msa.dtype), msa), position.to(torch.float32)


def draw_replacement(
    msa: Integer[Tensor, "M L"],
    profile_counts: Integer[Tensor, "L 22"],
    kind: Integer[Tensor, "M L"],
    draw: Integer[Tensor, "M L"],
    probs: tuple[float, float, float],
) -> Integer[Tensor, "M L"]:
    """The code that replaces each cell if masked-MSA selects it.

    A mixture drawn in two steps, with integers only, so that every device agrees:
    `kind` (32 random bits) selects a uniform amino acid, a draw from the column's
    profile, the cell itself, or [MASK]; `draw` (32 random bits) selects the code.
    `profile_counts` are occurrences of each code; `probs` those of uniform, profile and same.
    """
    edges = [int(p * 2**32) for p in np.cumsum(probs)]
    uniform = (draw * RESTYPE_NUM) >> 32
    cumulative = profile_counts.to(torch.int64).cumsum(-1)
    # By searchsorted: comparing [L, 22] for each of M rows would take M times the memory.
    target = (draw * cumulative[:, -1]) >> 32
    profile = torch.searchsorted(cumulative, target.T.contiguous(), right=True).T
    replaced = torch.where(kind < edges[2], msa.to(torch.int64), MASK)
    replaced = torch.where(kind < edges[1], profile, replaced)
    return torch.where(kind < edges[0], uniform, replaced)


def one_hot(
    codes: Integer[Tensor, "*S"], classes: int, dtype: torch.dtype = torch.float32
) -> Shaped[Tensor, "*S classes"]:
    """`[..., classes]`; a code outside the classes gives zeros. Without synchronization."""
    steps = torch.arange(classes, device=codes.device, dtype=codes.dtype)
    return (codes[..., None] == steps).to(dtype)


def has_deletion(deletions: Tensor) -> Float[Tensor, "*S"]:
    """1 where there is a deletion to the left of the cell."""
    return deletions.to(torch.float32).clamp(0, 1)


def deletion_value(deletions: Tensor) -> Float[Tensor, "*S"]:
    """`2/pi atan(d/3)`, 0 to 1 (AF2 SI table 1)."""
    return torch.atan(deletions.to(torch.float32) / 3) * (2 / math.pi)


def make_msa_feat(
    msa: Integer[Tensor, "M L"],
    deletions: Tensor,
    cluster_profile: Float[Tensor, "M L 23"],
    cluster_deletion_mean: Float[Tensor, "M L"],
) -> Float[Tensor, "M L 49"]:
    """The 49 channels of the clustered MSA (AF2 SI table 1)."""
    return torch.cat(
        [
            one_hot(msa, NUM_CODES),
            has_deletion(deletions)[..., None],
            deletion_value(deletions)[..., None],
            cluster_profile,
            deletion_value(cluster_deletion_mean)[..., None],
        ],
        dim=-1,
    )


def make_target_feat(aatype: Integer[Tensor, " L"]) -> Float[Tensor, "L 22"]:
    """A break flag, always 0 within a chain, and one-hot `aatype` (AF2 SI table 1)."""
    return torch.nn.functional.pad(one_hot(aatype, GAP), (1, 0))

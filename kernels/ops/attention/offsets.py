"""How wide the offsets of attention's kernels must be: 64 bits where a row may pass 2^31 numbers.

A program adds its row's and head's offset once, always in 64 bits; what it computes for every
tile is a position times that axis's stride. In 64 bits this costs 1 to 5 % of attention's time
(H200, benchmarks/results/attention_offsets_h200.json), and few inputs need it: the columns of
pairs of more than 2,000 residues.
"""

from __future__ import annotations

from torch import Tensor

LIMIT = 2**31
MOST_ROWS = 128  # rows or columns of any saved tile: the last tile's are counted whole


def is_wide(bias: Tensor | None, *views: Tensor) -> bool:
    """Whether a position times a stride may pass 2^31.

    Args:
        bias: `[B, H, Q, K]`, or None; its gradient has Q rows of K numbers too.
        views: `[B, R, N, H, D]`, anything that the kernels read or write by position.
    """
    longest = 0
    for t in views:
        _, _, N, H, _ = t.shape
        _, _, per_position, per_head, _ = t.stride()
        longest = max(longest, (N + MOST_ROWS) * per_position + H * per_head)
    if bias is not None:
        longest = max(longest, (bias.shape[2] + MOST_ROWS) * max(bias.stride(2), bias.shape[3]))
    return longest + MOST_ROWS > LIMIT

"""Launches of the two kernels between which the gradient of the logits lies in memory.

They take rows of whole tiles that are not too long, with a bias: the logits are computed once
for all four gradients. Letters as in `triton.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evofeed.kernels.ops.attention.hopper.arguments import (
    bias_strides,
    eighth,
    eighths,
    sizes,
    tensors,
)
from evofeed.kernels.ops.attention.hopper.backward import backward_kernel
from evofeed.kernels.ops.attention.hopper.logits_sums import logits_sums_kernel
from evofeed.kernels.ops.attention.offsets import is_wide
from evofeed.kernels.ops.attention.triton import LOG2E
from evofeed.kernels.runtime.backend import sm_count
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.tiles import Tile

if TYPE_CHECKING:
    from evofeed.kernels.ops.attention.op import BackwardInputs

LENGTHS = {384: (3, 2), 512: (2, 1)}
"""Positions of a row for which this was faster: stages of the sums, and their programs for each
multiprocessor (one at a time: its tiles fill shared memory)."""
FEWEST_ROWS = 32  # fewer do not fill the card, or leave nothing to sum
MOST_BYTES = 5 * 2**28  # of the logits' gradient
ROWS = Tile(128, 64, 4, 2)
SUMS = Tile(64, 128, 8, 1)


def fits(inputs: BackwardInputs) -> bool:
    """Whether these kernels take what `launch.backward_fits` does."""
    B, R, N, H, D = inputs.q.shape
    return (
        inputs.bias is not None
        and N in LENGTHS
        and D in (8, 16, 32)
        and R >= FEWEST_ROWS
        and B * R * H * N * N * 2 <= MOST_BYTES
    )


def run_backward(inputs: BackwardInputs) -> Tensor:
    """Writes dq, dk, dv and returns the gradient of the bias, `[B, H, N, N]` float32."""
    B, R, N, H, _ = inputs.q.shape
    ds = inputs.q.new_empty((B * R, H, N // 64, N, 64))
    _run_backward_to_logits(inputs, ds)
    return _run_sums(inputs, ds)


def _run_backward_to_logits(inputs: BackwardInputs, ds: Tensor) -> None:
    assert inputs.bias is not None
    B, R, N, H, D = inputs.q.shape
    keys_first = inputs.bias.transpose(2, 3).contiguous()
    _, dk, dv = inputs.grads
    launch(
        backward_kernel, (B * R * H,),
        (*tensors(inputs, keys_first), None, dk, dv, ds, *eighths(inputs.q), *eighths(dk),
         *eighths(inputs.do), *bias_strides(keys_first), eighth(inputs.mask and inputs.mask.term),
         R, H, N, float(inputs.scale * LOG2E), float(inputs.scale)),
        {**sizes(ROWS, D), "Q_TILES": N // ROWS.rows, "K_TILES": N // ROWS.columns,
         "HAS_BIAS": True, "HAS_MASK": inputs.mask is not None, "RESIDENT": False, "PAD": False,
         "WIDE": is_wide(keys_first, inputs.q, inputs.do, dk), "num_warps": ROWS.warps},
    )  # fmt: skip


def _run_sums(inputs: BackwardInputs, ds: Tensor) -> Tensor:
    B, R, N, H, D = inputs.q.shape
    stages, waves = LENGTHS[N]
    splits = max(1, min(R, waves * sm_count(inputs.q) // (B * H * (N // SUMS.rows))))
    partial = inputs.q.new_empty((B, splits, H, N, N), dtype=torch.float32)
    dq = inputs.grads[0]
    launch(
        logits_sums_kernel, (N // SUMS.rows, H, B * splits),
        (ds, inputs.k, dq, partial, *eighths(inputs.k), *eighths(dq), R, H, N, splits,
         float(inputs.scale)),
        {**sizes(SUMS, D), "TILES": N // SUMS.columns, "STAGES": stages,
         "WIDE": is_wide(None, inputs.k, dq), "num_warps": SUMS.warps},
    )  # fmt: skip
    return partial[:, 0] if splits == 1 else partial.sum(1)

"""By how much an atom's distances differ between structures, without a number for each pair.

Letters: B samples, R residues, S places of atoms with two names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.structure.renaming.triton import renaming_kernel

BLOCK = 32  # atoms a program takes at once, on either side


def renaming_errors_fit(atom14: Tensor) -> bool:
    """Whether the kernel takes these atoms."""
    return atom14.dtype is torch.float32 and usable(atom14)


def renaming_errors(
    pred: Tensor, targets: tuple[Tensor, Tensor], from_mask: Tensor, to_mask: Tensor, first: int,
    eps: float,
) -> Tensor:  # fmt: skip
    """Of each residue the sums of how much distances differ, `[2, *B, R]`; without a gradient.

    Args:
        pred: `[*B, R, 14, 3]`, for which `renaming_errors_fit`.
        targets: two structures like it.
        from_mask: `[*B, R, S]`, which atoms are looked at, from place `first` on.
        to_mask: `[*B, R, 14]`, which atoms they are held beside.
        first: see `from_mask`.
        eps: under the roots.
    """
    *leading, R, S = from_mask.shape
    A, given = 14 * R, [t.detach().contiguous() for t in (pred, *targets)]
    masks = [mask.to(pred.dtype).contiguous() for mask in (from_mask, to_mask)]
    error = pred.new_empty(2, *leading, R, S)
    launch(
        renaming_kernel, (triton.cdiv(R * S, BLOCK), max(1, pred.numel() // (3 * A))),
        (*given, *masks, error, A, from_mask.numel(), eps),
        {"S": S, "FIRST": first, "BLOCK": BLOCK, "num_warps": 4},
    )  # fmt: skip
    return error.sum(-1)

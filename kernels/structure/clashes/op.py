"""How far each atom reaches into atoms of other residues, without a number for each pair.

Letters: B samples, R residues, A = 14 R atoms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.kernels.runtime.backend import triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.structure.clashes.triton import clashes_grad_kernel, clashes_kernel

BLOCK = 32  # atoms a program takes at once, on either side


class Spared(NamedTuple):
    """Pairs that do not clash.

    Attributes:
        bonded_c, bonded_n: places of two atoms that are bonded where residues follow each other.
        sulphur: a place that is spared in every pair of residues.
        by_number: residues of the same number never clash, whatever their chain.
    """

    bonded_c: int
    bonded_n: int
    sulphur: int
    by_number: bool


class Clashes(NamedTuple):
    """Of each atom `[*B, R, 14]`; of a pair both atoms have it.

    Attributes:
        error: sum of how much closer than allowed other atoms are.
        number: how many are.
        worst: 1 where there is one.
        pairs: how many other atoms it was held beside.
    """

    error: Tensor
    number: Tensor
    worst: Tensor
    pairs: Tensor


class _Clashes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, atoms: Tensor, exists: Tensor, radius: Tensor, residue: Tensor, chain: Tensor,
        tolerance: float, spared: Spared,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        given = (atoms, exists, radius, residue, chain)
        found = tuple(torch.empty_like(exists) for _ in range(4))
        _launch(clashes_kernel, (*given, *found), tolerance, spared)
        ctx.save_for_backward(*given)
        ctx.tolerance, ctx.spared = tolerance, spared
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Any:
        given = ctx.saved_tensors
        out = torch.empty_like(given[0])
        _launch(clashes_grad_kernel, (*given, grad.contiguous(), out), ctx.tolerance, ctx.spared)
        return out, *[None] * 6


def _launch(kernel: Any, tensors: tuple[Tensor, ...], tolerance: float, spared: Spared) -> None:
    B, A = tensors[1].shape
    launch(
        kernel, (triton.cdiv(A, BLOCK), B),
        (*tensors, A, tolerance, spared.bonded_c, spared.bonded_n, spared.sulphur),
        {"BLOCK": BLOCK, "BY_NUMBER": spared.by_number, "num_warps": 4},
    )  # fmt: skip


def clashes_fit(atom14: Tensor) -> bool:
    """Whether the kernels take these atoms."""
    return atom14.dtype is torch.float32 and usable(atom14)


def clashes(
    atom14: Tensor,
    exists: Tensor,
    radius: Tensor,
    residue_index: Tensor,
    chain: Tensor | None,
    tolerance: float,
    spared: Spared,
) -> Clashes:
    """Overlaps of atoms of different residues; gradients go from `error` to `atom14`.

    Args:
        atom14: `[*B, R, 14, 3]`, for which `clashes_fit`.
        exists: `[*B, R, 14]`, 1 for an atom that is there.
        radius: `[*B, R, 14]`, ångström.
        residue_index: `[*B, R]`.
        chain: `[*B, R]`, None for one chain.
        tolerance: by how much a distance may be less than two radii.
        spared: which pairs do not count.
    """
    shape = exists.shape
    A = shape[-2] * shape[-1]
    chain = torch.zeros_like(residue_index) if chain is None else chain
    found = _Clashes.apply(  # type: ignore[no-untyped-call]
        atom14.reshape(-1, A, 3).contiguous(), exists.reshape(-1, A).to(atom14.dtype).contiguous(),
        radius.reshape(-1, A).contiguous(), residue_index.contiguous(), chain.contiguous(),
        tolerance, spared,
    )  # fmt: skip
    return Clashes(*(t.view(shape) for t in found))

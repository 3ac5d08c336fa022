"""Between the projections of invariant point attention and its products, one kernel each way.

Letters: R residues, H heads, C channels of a head, P points of queries and keys, V of values.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.kernels.ops.point_sides.triton import point_sides_grad_kernel, point_sides_kernel
from evofeed.kernels.runtime.backend import triton, usable
from evofeed.kernels.runtime.launching import launch

BLOCK = 16  # residues of a program


class PointSizes(NamedTuple):
    """Sizes of an invariant point attention: heads, channels of one, points of q and k, of v."""

    heads: int
    channels: int
    points: int
    value_points: int

    def constants(self) -> dict[str, int]:
        """As the kernels take them."""
        return {"H": self[0], "C": self[1], "P": self[2], "V": self[3], "BLOCK": BLOCK}


class _PointSides(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sizes: PointSizes, projected: Tensor, rots: Tensor, trans: Tensor, gamma: Tensor
    ) -> tuple[Tensor, ...]:
        (B, R, _), (H, C, P, V) = projected.shape, sizes
        left = projected.new_empty(B, H, R, C + 4 * P)
        right, values = torch.empty_like(left), projected.new_empty(B, H, R, C + 3 * V)
        given = (projected, rots, trans, gamma)
        launch(
            point_sides_kernel, (triton.cdiv(B * R, BLOCK), H),
            (*given, left, right, values, B * R, R, math.sqrt(1 / (3 * C))),
            {**sizes.constants(), "num_warps": 4},
        )  # fmt: skip
        ctx.save_for_backward(*given)
        ctx.sizes = sizes
        return left, right, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, left: Tensor, right: Tensor, values: Tensor) -> Any:
        projected, rots, trans, gamma = ctx.saved_tensors
        sizes, of_rots = ctx.sizes, ctx.needs_input_grad[2]
        (B, R, _), H, C = projected.shape, sizes.heads, sizes.channels
        programs = triton.cdiv(B * R, BLOCK)
        out, of_gamma = torch.empty_like(projected), projected.new_empty(programs, H)
        of_frame = projected.new_empty(B, R, H, 12)
        launch(
            point_sides_grad_kernel, (programs, H),
            (left.contiguous(), right.contiguous(), values.contiguous(), projected, rots, trans,
             gamma, out, of_frame, of_gamma, B * R, R, math.sqrt(1 / (3 * C))),
            {**sizes.constants(), "OF_ROTS": of_rots, "num_warps": 4},
        )  # fmt: skip
        dtrans = of_frame[..., 9:].sum(-2)
        drots = of_frame[..., :9].sum(-2).view_as(rots) if of_rots else None
        return None, out, drots, dtrans, of_gamma.sum(0)


def point_sides_fit(projected: Tensor, sizes: PointSizes) -> bool:
    """Whether the kernels take these projections: `[B, R, ...]` in float32."""
    even = all(size & (size - 1) == 0 for size in sizes[1:])
    return projected.dim() == 3 and projected.dtype is torch.float32 and even and usable(projected)


def point_sides(
    projected: Tensor, rots: Tensor, trans: Tensor, gamma: Tensor, sizes: PointSizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Both sides of the logits and the values.

    Args:
        projected: `[B, R, 3 H (C + 2 P + V)]`, for which `point_sides_fit`: q, then k and v of
            each head, points of queries in the residue's frame (all x, all y, all z), points of
            keys and values.
        rots: `[B, R, 3, 3]`.
        trans: `[B, R, 3]`.
        gamma: `[H]`, weight of squared distances.
        sizes: of the attention.

    Returns:
        `[B, H, R, C + 4 P]` twice, whose product over channels is that of q and k, over the root
        of 3 C, less gamma / 2 |q - k|^2 but for the queries' own square, and values
        `[B, R, H, C + 3 V]`, points of all in one frame.
    """
    found = _PointSides.apply(  # type: ignore[no-untyped-call]
        sizes, projected.contiguous(), rots.contiguous(), trans.contiguous(), gamma
    )
    left, right, values = found
    return left, right, values.transpose(-2, -3)

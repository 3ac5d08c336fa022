"""Between the projections of invariant point attention and its products, one kernel each way.

Letters: R residues, H heads, C channels of a head, P points of queries and keys, V of values.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.kernels.runtime.backend import triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.structure.point_sides.triton import (
    point_ends_grad_kernel,
    point_ends_kernel,
    point_sides_grad_kernel,
    point_sides_kernel,
)

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


class _PointEnds(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sizes: PointSizes, eps: float, clamped: bool, attended: Tensor, rots: Tensor,
        trans: Tensor,
    ) -> Tensor:  # fmt: skip
        (B, H, R, _), V = attended.shape, sizes.value_points
        out = attended.new_empty(B, R, H * (sizes.channels + 4 * V))
        _launch_ends(
            point_ends_kernel, (attended, rots, trans, out), sizes, eps, clamped, trans,
            out.shape[-1],
        )  # fmt: skip
        ctx.save_for_backward(attended, rots, trans)
        ctx.options = sizes, eps, clamped
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        attended, rots, trans = ctx.saved_tensors
        out, (B, H, R, _) = torch.empty_like(attended), attended.shape
        dtrans, rows = attended.new_empty(B, R, H, 3), dout
        if dout.stride(-1) != 1 or dout.stride(0) != R * dout.stride(1):
            rows = dout.contiguous()
        sizes, eps, clamped = ctx.options
        _launch_ends(
            point_ends_grad_kernel, (rows, attended, rots, trans, out, dtrans), sizes, eps,
            clamped, trans, rows.stride(1),
        )  # fmt: skip
        return None, None, None, out, None, dtrans.sum(-2)


def _launch_ends(
    kernel: Any, tensors: tuple[Tensor, ...], sizes: PointSizes, eps: float, clamped: bool,
    trans: Tensor, stride: int,
) -> None:  # fmt: skip
    H, C, _, V = sizes
    B, R, _ = trans.shape
    launch(
        kernel, (triton.cdiv(B * R, BLOCK), H), (*tensors, B * R, R, eps, stride),
        {"H": H, "C": C, "V": V, "BLOCK": BLOCK, "CLAMPED": clamped, "num_warps": 4},
    )  # fmt: skip


def point_ends_fit(attended: Tensor, rots: Tensor, sizes: PointSizes) -> bool:
    """Whether the kernels take these values: `[B, H, R, C + 3 V]`, no gradient to rotations."""
    return attended.dim() == 4 and not rots.requires_grad and point_sides_fit(attended[0], sizes)


def point_ends(
    attended: Tensor, rots: Tensor, trans: Tensor, sizes: PointSizes, eps: float, clamped: bool
) -> Tensor:
    """What attention gave each residue, points seen from its frame.

    Args:
        attended: `[B, H, R, C + 3 V]`, for which `point_ends_fit`.
        rots: `[B, R, 3, 3]`.
        trans: `[B, R, 3]`.
        sizes: of the attention.
        eps: under the root of a distance.
        clamped: the least square is eps, which is not added.

    Returns:
        `[B, R, H (C + 4 V)]`: channels, x, y and z of points, their distances, heads outermost in
        each.
    """
    found: Tensor = _PointEnds.apply(  # type: ignore[no-untyped-call]
        sizes, eps, clamped, attended.contiguous(), rots.contiguous(), trans.contiguous()
    )
    return found

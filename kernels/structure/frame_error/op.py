"""Errors of points seen from frames, summed over all of both, without a number for each pair.

The gradient of a sum is known where its terms are: both come from the forward pass.

Letters: T targets, G structures (the same targets again and again), F frames, P points.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.kernels.runtime.backend import triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.structure.frame_error import reference
from evofeed.kernels.structure.frame_error.triton import (
    frame_error_kernel,
    frame_error_points_kernel,
)

FRAMES, POINTS = 16, 32  # of a tile of pairs


class _FrameError(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, most: float, eps: float, *tensors: Tensor) -> Tensor:
        rots, trans, points, *_, share = tensors
        (G, F), P, T = trans.shape[:2], points.shape[1], share.shape[0]
        grad = any(ctx.needs_input_grad)
        total = rots.new_empty(G, F)
        of_frames = rots.new_empty(G, F, 12) if grad else None
        sizes = {"BLOCK_F": FRAMES, "BLOCK_P": POINTS}
        numbers = (F, P, T, most, eps)
        launch(
            frame_error_kernel, (triton.cdiv(F, FRAMES), G), (*tensors, total, of_frames, *numbers),
            {**sizes, "GRAD": grad, "num_warps": 4},
        )  # fmt: skip
        if of_frames is not None:
            of_points = torch.empty_like(points)
            launch(
                frame_error_points_kernel, (triton.cdiv(P, POINTS), G),
                (*tensors, of_points, *numbers), {**sizes, "num_warps": 4},
            )  # fmt: skip
            ctx.save_for_backward(of_frames, of_points)
        return total.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        of_frames, of_points = ctx.saved_tensors
        of_frames = of_frames * grad[:, None, None]
        rots = of_frames[..., :9].unflatten(-1, (3, 3))
        return None, None, rots, of_frames[..., 9:], of_points * grad[:, None, None], *[None] * 6


def frame_error_fits(points: Tensor, targets: Tensor) -> bool:
    """Whether the kernels take these points `[*C, P, 3]` and targets `[*B, P, 3]`."""
    leading, own = points.shape[:-2], targets.shape[:-2]
    alike = len(own) > 0 and leading[len(leading) - len(own) :] == own
    float32 = points.dtype is targets.dtype is torch.float32
    return alike and float32 and usable(points, targets)


def frame_error(
    rots: Tensor,
    trans: Tensor,
    points: Tensor,
    target_rots: Tensor,
    target_trans: Tensor,
    target_points: Tensor,
    frame_weight: Tensor,
    point_weight: Tensor,
    clamped_share: Tensor,
    *,
    most: float = math.inf,
    eps: float = 1e-4,
) -> Tensor:
    """Sum over frames and points of the distance between a point and its target.

    Both seen from their own frame, x -> R^T (x - t). Gradients go to the first three.

    Args:
        rots: `[*C, F, 3, 3]`; the last axes of C are those of B.
        trans: `[*C, F, 3]`.
        points: `[*C, P, 3]`.
        target_rots: `[*B, F, 3, 3]`.
        target_trans: `[*B, F, 3]`.
        target_points: `[*B, P, 3]`.
        frame_weight: `[*B, F]`.
        point_weight: `[*B, P]`.
        clamped_share: `[*B]`, which share of an error is clamped.
        most: what an error is clamped to.
        eps: under the root.

    Returns:
        `[*C]`.
    """
    tensors = (
        rots, trans, points, target_rots, target_trans, target_points, frame_weight, point_weight,
        clamped_share,
    )  # fmt: skip
    leading, own = trans.shape[:-2], clamped_share.shape
    if not frame_error_fits(points, target_points):
        return reference.frame_error(*tensors, most=most, eps=eps)
    G, T, F, P = math.prod(leading), own.numel(), trans.shape[-2], points.shape[-2]
    shapes = (
        (G, F, 3, 3), (G, F, 3), (G, P, 3), (T, F, 3, 3), (T, F, 3), (T, P, 3), (T, F), (T, P), (T,)
    )  # fmt: skip
    flat = [t.reshape(shape).contiguous() for t, shape in zip(tensors, shapes, strict=True)]
    found: Tensor = _FrameError.apply(most, eps, *flat)  # type: ignore[no-untyped-call]
    return found.view(leading)

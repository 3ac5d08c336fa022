"""A backbone update: quaternions, origins and rotations of all residues by one kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.kernels.runtime.backend import triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.structure.frame_update.triton import (
    frame_update_grad_kernel,
    frame_update_kernel,
)

BLOCK = 32  # residues of a program


class _FrameUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, quaternion: Tensor, trans: Tensor, update: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        N = trans.numel() // 3
        new, moved = torch.empty_like(quaternion), torch.empty_like(trans)
        rots = trans.new_empty(*trans.shape, 3)
        launch(
            frame_update_kernel, (triton.cdiv(N, BLOCK),),
            (quaternion, trans, update, new, moved, rots, N), {"BLOCK": BLOCK, "num_warps": 1},
        )  # fmt: skip
        ctx.save_for_backward(quaternion, update)
        ctx.mark_non_differentiable(rots)
        return new, moved, rots

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dnew: Tensor | None, dmoved: Tensor | None, _: Any) -> Any:
        quaternion, update = ctx.saved_tensors
        N, out = quaternion.numel() // 4, torch.empty_like(update)
        if dmoved is None:
            dmoved = torch.zeros_like(update[..., 3:])
        dmoved = dmoved.contiguous()
        launch(
            frame_update_grad_kernel, (triton.cdiv(N, BLOCK),),
            (quaternion if dnew is None else dnew.contiguous(), dmoved, quaternion, update, out, N),
            {"BLOCK": BLOCK, "HAS_NEW": dnew is not None, "num_warps": 1},
        )  # fmt: skip
        return None, dmoved, out


def frame_update_fits(quaternion: Tensor, trans: Tensor) -> bool:
    """Whether the kernels take these frames: float32, no gradient to the quaternion."""
    return not quaternion.requires_grad and trans.dtype is torch.float32 and usable(trans)


def frame_update(
    quaternion: Tensor, trans: Tensor, update: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """normalise(q + q * (0, update)), t + R(q) update, and the new rotation, without a gradient.

    Args:
        quaternion: `[*, 4]`, for which `frame_update_fits`.
        trans: `[*, 3]`.
        update: `[*, 6]`, of the quaternion's vector part and of the origin in the old frame.
    """
    found: tuple[Tensor, Tensor, Tensor] = _FrameUpdate.apply(  # type: ignore[no-untyped-call]
        quaternion.contiguous(), trans.contiguous(), update.contiguous()
    )
    return found

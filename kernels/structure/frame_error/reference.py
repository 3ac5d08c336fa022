"""Summed errors of points in all frames in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

import torch
from torch import Tensor


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
    most: float,
    eps: float,
) -> Tensor:
    """See `frame_error.op.frame_error`."""
    sides = []
    for rotations, origins, places in (
        (rots, trans, points), (target_rots, target_trans, target_points)
    ):  # fmt: skip
        seen = places[..., None, :, :] - origins[..., None, :]  # [*, F, P, 3]
        sides.append(torch.sum(rotations[..., None, :, :] * seen[..., None], dim=-2))
    error = torch.sqrt(torch.sum((sides[0] - sides[1]) ** 2, dim=-1) + eps)
    share = clamped_share[..., None, None]
    error = share * torch.clamp(error, max=most) + (1 - share) * error
    return torch.sum(frame_weight[..., None] * point_weight[..., None, :] * error, dim=(-1, -2))

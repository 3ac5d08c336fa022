"""Frame aligned point error (FAPE): distances of predicted and true atoms in every local frame.

Source: AF2 SI 1.9.2, algorithm 28. Letters: R residues, L structure layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.compiled import compilable
from evofeed.trainer.model.config import LossConfig
from evofeed.trainer.model.primitives import exact_products
from evofeed.trainer.model.rigid import Rigid, from_4x4, from_frames

_EPS = 1e-4


@compilable
def compute_fape(
    pred_frames: Rigid,
    target_frames: Rigid,
    frames_mask: Float[Tensor, "*B F"],
    pred_positions: Float[Tensor, "*C P 3"],
    target_positions: Float[Tensor, "*B P 3"],
    positions_mask: Float[Tensor, "*B P"],
    *,
    length_scale: float,
    clamp_distance: float | None,
    clamped_share: Tensor | None = None,
    eps: float = _EPS,
) -> Float[Tensor, "*C"]:
    """Mean error over all frames and points, in units of `length_scale`.

    Positions and lengths are in ångström; masks are 1 for frames and points that count.

    Args:
        clamp_distance: larger errors are set to it, and give no gradient.
        clamped_share: 1 to clamp, 0 not to, per sample; None clamps.
        eps: under the root and in both denominators.
    """
    difference = _local_difference(pred_frames, pred_positions, target_frames, target_positions)
    error = torch.sqrt(torch.sum(difference**2, dim=-2) + eps)
    if clamp_distance is not None:
        error = _clamped(error, clamp_distance, clamped_share)
    per_frame = torch.sum(error * positions_mask[..., None, :], dim=-1)
    total = torch.sum(per_frame * frames_mask, dim=-1)
    # Two divisions, each with its eps, as in OpenFold.
    total = total / length_scale / (eps + torch.sum(frames_mask, dim=-1))
    return total / (eps + torch.sum(positions_mask, dim=-1))


def _clamped(error: Tensor, limit: float, share: Tensor | None) -> Tensor:
    clamped = torch.clamp(error, max=limit)
    if share is None:
        return clamped
    share = share[..., None, None]
    return share * clamped + (1 - share) * error


def _local_difference(
    pred_frames: Rigid, pred_positions: Tensor, target_frames: Rigid, target_positions: Tensor
) -> Float[Tensor, "*C F 3 P"]:
    """R^T (x - t) of the prediction minus that of the target, for all frames and points.

    One product [R^T, -R'^T, -R^T t + R'^T t'] [x; x'; 1], so that no tensor with 9 numbers per
    frame and point is made. Coordinates are centred first, which loses fewer digits.
    """
    sides = []
    for frames, points, sign in (
        (pred_frames, pred_positions, 1.0),
        (target_frames, target_positions, -1.0),
    ):
        centre = points.detach().mean(dim=-2, keepdim=True)
        inverse = sign * frames.rots.transpose(-1, -2)  # [*, F, 3, 3]
        moved = torch.sum(inverse * (frames.trans - centre)[..., None, :], dim=-1)
        sides.append((inverse, moved, (points - centre).transpose(-1, -2)))
    (r, t, x), (r_target, t_target, x_target) = sides
    left = torch.cat([r, r_target.expand_as(r), -(t + t_target)[..., None]], dim=-1)
    right = torch.cat([x, x_target.expand_as(x), torch.ones_like(x[..., :1, :])], dim=-2)
    with exact_products():
        product = torch.matmul(left.flatten(-3, -2), right)
    return torch.unflatten(product, -2, (-1, 3))


def backbone_fape(
    frames: Float[Tensor, "..."],
    backbone_rigid_tensor: Float[Tensor, "*B R 4 4"],
    backbone_rigid_mask: Float[Tensor, "*B R"],
    use_clamped_fape: Float[Tensor, "*B"] | None,
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """FAPE of backbone frames and CA atoms, mean over the structure module's layers.

    `frames` are the structure module's, `[L, *, R, 7]` or `[L, *, R, 4, 4]`.
    """
    pred = from_frames(frames)
    target = from_4x4(backbone_rigid_tensor)
    per_layer = compute_fape(
        pred,
        target,
        backbone_rigid_mask,
        pred.trans,
        target.trans,
        backbone_rigid_mask,
        length_scale=config.fape_length_scale,
        clamp_distance=config.fape_clamp_distance,
        clamped_share=use_clamped_fape,
    )
    return torch.mean(per_layer, dim=0)


def chain_fape(
    frames: Float[Tensor, "L *B R 4 4"],
    backbone_rigid_tensor: Float[Tensor, "*B R 4 4"],
    backbone_rigid_mask: Float[Tensor, "*B R"],
    asym_id: Int[Tensor, "*B R"],
    use_clamped_fape: Float[Tensor, "*B"] | None,
    config: LossConfig,
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """Backbone FAPE within chains and between chains, each a mean over its pairs and layers.

    A complex of one chain has an interface loss of 0. `use_clamped_fape` is 1 to clamp, 0 not to,
    per sample; None clamps. Source: AlphaFold-Multimer, section 2.3.
    """
    pred, target = from_frames(frames), from_4x4(backbone_rigid_tensor)
    difference = _local_difference(pred, pred.trans, target, target.trans)
    error = torch.sqrt(torch.sum(difference**2, dim=-2) + _EPS)
    pair_mask = backbone_rigid_mask[..., :, None] * backbone_rigid_mask[..., None, :]
    within = (asym_id[..., :, None] == asym_id[..., None, :]).to(error.dtype)

    def mean(mask: Tensor, limit: float, scale: float) -> Tensor:
        clamped = _clamped(error, limit, use_clamped_fape)
        total = torch.sum(clamped * mask, dim=(-1, -2)) / scale
        return torch.mean(total / (_EPS + torch.sum(mask, dim=(-1, -2))), dim=0)

    between = config.fape_interface_clamp_distance, config.fape_interface_length_scale
    return (
        mean(pair_mask * within, config.fape_clamp_distance, config.fape_length_scale),
        mean(pair_mask * (1 - within), *between),
    )


def sidechain_fape(
    sidechain_frames: Float[Tensor, "L *B R 8 4 4"],
    positions: Float[Tensor, "L *B R 14 3"],
    rigidgroups_gt_frames: Float[Tensor, "*B R 8 4 4"],
    rigidgroups_alt_gt_frames: Float[Tensor, "*B R 8 4 4"],
    rigidgroups_gt_exists: Float[Tensor, "*B R 8"],
    renamed_atom14_gt_positions: Float[Tensor, "*B R 14 3"],
    renamed_atom14_gt_exists: Float[Tensor, "*B R 14"],
    alt_naming_is_better: Float[Tensor, "*B R"],
    config: LossConfig,
) -> Float[Tensor, "*B"]:
    """FAPE of all frames and atoms of the last layer, always clamped, against renamed truth."""
    alt = alt_naming_is_better[..., None, None, None]
    target = (1 - alt) * rigidgroups_gt_frames + alt * rigidgroups_alt_gt_frames
    return compute_fape(
        from_4x4(sidechain_frames[-1].flatten(-4, -3)),
        from_4x4(target.flatten(-4, -3)),
        rigidgroups_gt_exists.flatten(-2),
        positions[-1].flatten(-3, -2),
        renamed_atom14_gt_positions.flatten(-3, -2),
        renamed_atom14_gt_exists.flatten(-2),
        length_scale=config.fape_length_scale,
        clamp_distance=config.fape_clamp_distance,
    )

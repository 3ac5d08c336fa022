"""Rigid transforms: rotations as matrices or unit quaternions (w, x, y, z), and translations.

Everything here runs at least in float32, outside autocast. Coordinates keep the
unit of their input. Source: AF2 SI 1.1, algorithms 21 to 23.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evofeed.shapes import Float

__all__ = [
    "Rigid",
    "apply",
    "compose",
    "compose_quaternion_update",
    "from_4x4",
    "from_tensor_7",
    "invert_apply",
    "quaternion_to_matrix",
    "to_4x4",
]


class Rigid(NamedTuple):
    """x -> R x + t, any leading axes: `rots [*, 3, 3]`, `trans [*, 3]`."""

    rots: Tensor
    trans: Tensor

    def unsqueeze(self, dim: int) -> Rigid:
        """The same transforms with a new leading axis at `dim` (negative counts from theirs)."""
        if dim >= 0:
            raise ValueError(f"dim must be negative, is {dim}")
        return Rigid(self.rots.unsqueeze(dim - 2), self.trans.unsqueeze(dim - 1))

    def scale_translation(self, factor: float) -> Rigid:
        """The same rotation, the translation times `factor`."""
        return Rigid(self.rots, self.trans * factor)


def apply(rigid: Rigid, points: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3"]:
    """Points in the global frame: R x + t. Leading axes broadcast."""
    return _rotate(rigid.rots, points) + rigid.trans


def invert_apply(rigid: Rigid, points: Float[Tensor, "*B 3"]) -> Float[Tensor, "*C 3"]:
    """Points in the local frame: R^T (x - t). Leading axes broadcast."""
    return _rotate(rigid.rots.transpose(-1, -2), points - rigid.trans)


def compose(outer: Rigid, inner: Rigid) -> Rigid:
    """First `inner`, then `outer`."""
    rots = torch.matmul(outer.rots, inner.rots)
    return Rigid(rots, _rotate(outer.rots, inner.trans) + outer.trans)


def _rotate(rots: Tensor, points: Tensor) -> Tensor:
    # Broadcast products rather than a batched 3x3 matmul: faster, and never TF32.
    return torch.sum(rots * points[..., None, :], dim=-1)


def quaternion_to_matrix(quaternion: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 3 3"]:
    """Rotation matrix of a unit quaternion, in the homogeneous form (not normalised here).

    Source: AF2 SI algorithm 23, without its normalisation.
    """
    w, x, y, z = torch.unbind(quaternion, dim=-1)
    entries = [
        w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z,
    ]  # fmt: skip
    return torch.unflatten(torch.stack(entries, dim=-1), -1, (3, 3))


def compose_quaternion_update(
    quaternion: Float[Tensor, "*B 4"], update: Float[Tensor, "*B 3"]
) -> Float[Tensor, "*B 4"]:
    """normalise(q + q * (0, update)): a small rotation given by its vector part.

    Source: AF2 SI algorithm 23, where the update's real part is 1.
    """
    w, x, y, z = torch.unbind(quaternion, dim=-1)
    a, b, c = torch.unbind(update, dim=-1)
    product = [
        -x * a - y * b - z * c,
        w * a + y * c - z * b,
        w * b + z * a - x * c,
        w * c + x * b - y * a,
    ]
    new = quaternion + torch.stack(product, dim=-1)
    norm: Tensor = torch.linalg.vector_norm(new, dim=-1, keepdim=True)
    return new / norm


def from_tensor_7(tensor: Float[Tensor, "*B 7"]) -> Rigid:
    """Transforms from a unit quaternion and a translation, one after the other."""
    return Rigid(quaternion_to_matrix(tensor[..., :4]), tensor[..., 4:])


def from_4x4(tensor: Float[Tensor, "*B 4 4"]) -> Rigid:
    """Transforms from homogeneous matrices."""
    return Rigid(tensor[..., :3, :3], tensor[..., :3, 3])


def to_4x4(rigid: Rigid) -> Float[Tensor, "*B 4 4"]:
    """Homogeneous matrices `[*, 4, 4]`."""
    top = torch.cat([rigid.rots, rigid.trans[..., None]], dim=-1)
    last = torch.zeros_like(top[..., :1, :])
    last[..., 3] = 1
    return torch.cat([top, last], dim=-2)

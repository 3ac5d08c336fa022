"""Rigid transforms: rotations as matrices or unit quaternions (w, x, y, z), and translations.

Callers run these at least in float32, outside autocast. Coordinates keep the
unit of their input. Source: AF2 SI 1.1, algorithms 21 to 23.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from evofeed.base.shapes import Float


class Rigid(NamedTuple):
    """x -> R x + t, any leading axes: `rots [*, 3, 3]`, `trans [*, 3]`."""

    rots: Tensor
    trans: Tensor

    def unsqueeze(self, dim: int) -> Rigid:
        """The same transforms with a new axis at `dim`, which is negative and counts batch axes."""
        if dim >= 0:
            raise ValueError(f"dim must be negative, is {dim}")
        return Rigid(self.rots.unsqueeze(dim - 2), self.trans.unsqueeze(dim - 1))


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
    """Rotation matrix of a unit quaternion, in the homogeneous form (without normalisation).

    Source: AF2 SI algorithm 23, without its normalisation.
    """
    products = (quaternion[..., :, None] * quaternion[..., None, :]).flatten(-2)
    entries = _combined(products, "matrix")
    return torch.unflatten(entries, -1, (3, 3))


def compose_quaternion_update(
    quaternion: Float[Tensor, "*B 4"], update: Float[Tensor, "*B 3"]
) -> Float[Tensor, "*B 4"]:
    """normalise(q + q * (0, update)): a small rotation given by its vector part.

    Source: AF2 SI algorithm 23, where the update's real part is 1.
    """
    products = (quaternion[..., :, None] * update[..., None, :]).flatten(-2)
    new = quaternion + _combined(products, "update")
    norm: Tensor = torch.linalg.vector_norm(new, dim=-1, keepdim=True)
    return new / norm


# The terms of each result, row by row, e.g. `+ww` for w * w; unit vectors i, j, k are x, y, z.
_TERMS: Final = {
    "matrix": """
        +ww+xx-yy-zz  +xy+yx-wz-zw  +xz+zx+wy+yw
        +xy+yx+wz+zw  +ww-xx+yy-zz  +yz+zy-wx-xw
        +xz+zx-wy-yw  +yz+zy+wx+xw  +ww-xx-yy+zz""",
    "update": "-xx-yy-zz  +wx+yz-zy  +wy+zx-xz  +wz+xy-yx",
}


@lru_cache(maxsize=32)
def _signs(name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Coefficients `[results, products]`, 0 or +-1, of the products of two quaternion parts."""
    second = "wxyz" if name == "matrix" else "xyz"
    signs = [
        [result.count("+" + a + b) - result.count("-" + a + b) for a in "wxyz" for b in second]
        for result in _TERMS[name].split()
    ]
    with torch.inference_mode(False), torch.no_grad():
        return torch.tensor(signs, dtype=dtype).to(device)


def _combined(products: Tensor, name: str) -> Tensor:
    """Signed sums of products by one matrix: a few kernels instead of one for every sign."""
    return torch.sum(products[..., None, :] * _signs(name, products.device, products.dtype), dim=-1)


def from_tensor_7(tensor: Float[Tensor, "*B 7"]) -> Rigid:
    """Transforms from a unit quaternion (w, x, y, z) followed by a translation."""
    return Rigid(quaternion_to_matrix(tensor[..., :4]), tensor[..., 4:])


def from_4x4(tensor: Float[Tensor, "*B 4 4"]) -> Rigid:
    """Transforms from homogeneous matrices."""
    return Rigid(tensor[..., :3, :3], tensor[..., :3, 3])


def from_frames(tensor: Float[Tensor, "..."]) -> Rigid:
    """Transforms from the structure module's `frames`, `[*, 7]`, for complexes `[*, 4, 4]`."""
    return from_tensor_7(tensor) if tensor.shape[-1] == 7 else from_4x4(tensor)


def to_4x4(rigid: Rigid) -> Float[Tensor, "*B 4 4"]:
    """Homogeneous matrices `[*, 4, 4]`."""
    top = torch.cat([rigid.rots, rigid.trans[..., None]], dim=-1)
    last = torch.zeros_like(top[..., :1, :])
    last[..., 3] = 1
    return torch.cat([top, last], dim=-2)

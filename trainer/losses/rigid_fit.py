"""RMSD of the best superposition of point sets, from sums over their points.

Sums over points add up, so the fit of any union of chains costs one addition of 18 numbers.
Source: Theobald 2005 (the largest root of the key matrix's characteristic polynomial).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evofeed.base.shapes import Float

_NEWTON_STEPS = 3
_TINY = 1e-30


def fit_sums(
    x: Float[Tensor, "*B 3"], y: Float[Tensor, "*B 3"], weight: Float[Tensor, "*B"]
) -> Float[Tensor, "*B 18"]:
    """The summands of one pair of points: count, x, y, x y^T, |x|^2, |y|^2."""
    outer = (x[..., :, None] * y[..., None, :]).flatten(-2)
    squares = [torch.sum(points**2, dim=-1, keepdim=True) for points in (x, y)]
    parts = [torch.ones_like(x[..., :1]), x, y, outer, *squares]
    return torch.cat(parts, dim=-1) * weight[..., None]


def fit_rmsd(sums: Float[Tensor, "*B 18"]) -> Float[Tensor, "*B"]:
    """Root mean square distance after the best rigid superposition; infinite without points.

    No loop over samples, no decomposition by a library, no wait for the device. Collinear points
    lose digits: the relative error of the square is 1e-5.
    """
    count = sums[..., 0].clamp(min=1)
    x, y = sums[..., 1:4], sums[..., 4:7]
    covariance = torch.unflatten(sums[..., 7:16], -1, (3, 3))
    covariance = covariance - x[..., :, None] * y[..., None, :] / count[..., None, None]
    spread = sums[..., 16] + sums[..., 17]
    spread = spread - (torch.sum(x**2, dim=-1) + torch.sum(y**2, dim=-1)) / count
    half = (spread / 2).clamp(min=_TINY)
    best = half * _best_overlap(covariance / half[..., None, None])
    mean = (spread - 2 * best).clamp(min=0) / count
    return torch.where(sums[..., 0] > 0, torch.sqrt(mean), torch.inf)


def _best_overlap(matrix: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B"]:
    """The largest trace of R M over rotations R: the singular values, the last one signed."""
    determinant = _determinant(matrix)
    square = torch.sum(matrix[..., :, :, None] * matrix[..., :, None, :], dim=-3)
    roots = _eigenvalues(square).clamp(min=0).sqrt()
    sign = torch.where(determinant < 0, -1.0, 1.0).to(matrix.dtype)
    value = roots[..., 0] + roots[..., 1] + sign * roots[..., 2]
    # Newton steps: the trace is the largest root of x^4 + c2 x^2 + c1 x + c0.
    trace = torch.sum(matrix**2, dim=(-1, -2))
    c2, c1 = -2 * trace, -8 * determinant
    c0 = 2 * torch.sum(square**2, dim=(-1, -2)) - trace**2
    for _ in range(_NEWTON_STEPS):
        polynomial = ((value**2 + c2) * value + c1) * value + c0
        slope = (4 * value**2 + 2 * c2) * value + c1
        step = polynomial / torch.where(slope.abs() > 1e-6, slope, torch.inf)
        value = value - step
    return value


def _eigenvalues(matrix: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 3"]:
    """Eigenvalues of symmetric matrices, largest first, by the cosine formula."""
    mean = torch.diagonal(matrix, dim1=-2, dim2=-1).sum(-1) / 3
    identity = torch.eye(3, dtype=matrix.dtype, device=matrix.device)
    centred = matrix - mean[..., None, None] * identity
    size = torch.sqrt(torch.sum(centred**2, dim=(-1, -2)) / 6).clamp(min=_TINY)
    cosine = (_determinant(centred / size[..., None, None]) / 2).clamp(-1, 1)
    angle = torch.acos(cosine) / 3
    first = mean + 2 * size * torch.cos(angle)
    last = mean + 2 * size * torch.cos(angle + 2 * math.pi / 3)
    return torch.stack([first, 3 * mean - first - last, last], dim=-1)


def _determinant(matrix: Tensor) -> Tensor:
    a, b, c = torch.unbind(matrix, dim=-2)
    return torch.sum(a * torch.linalg.cross(b, c), dim=-1)

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels of the frame error: sums over points for frames, sums over frames for points.

Letters: G structures, T targets that follow one another in them, F frames, P points.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.structure.frames import load_frame, load_point


@triton.jit
def _seen(frames, points):
    """Points less origins, and these in their frames: `[F, P]` each."""
    a, b, c, d, e, f, g, h, i, u, v, w = frames
    x = points[0][None, :] - u[:, None]
    y = points[1][None, :] - v[:, None]
    z = points[2][None, :] - w[:, None]
    return (
        x, y, z,
        a[:, None] * x + d[:, None] * y + g[:, None] * z,
        b[:, None] * x + e[:, None] * y + h[:, None] * z,
        c[:, None] * x + f[:, None] * y + i[:, None] * z,
    )  # fmt: skip


@triton.jit
def _errors(mine, theirs, weight, share, most, eps):
    """The weighted error of each pair, and its gradient in the frame."""
    dx, dy, dz = mine[3] - theirs[3], mine[4] - theirs[4], mine[5] - theirs[5]
    error = tl.sqrt(dx * dx + dy * dy + dz * dz + eps)
    slope = weight * tl.where(error <= most, 1.0, 1.0 - share) / error
    error = share * tl.minimum(error, most) + (1.0 - share) * error
    return weight * error, dx * slope, dy * slope, dz * slope


@triton.jit
def frame_error_kernel(
    ROTS, TRANS, POINTS, TARGET_ROTS, TARGET_TRANS, TARGET_POINTS, FRAME_WEIGHT, POINT_WEIGHT,
    SHARE, TOTAL, OF_FRAMES, F, P, T, most, eps,
    BLOCK_F: tl.constexpr, BLOCK_P: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    """TOTAL `[G, F]`: each frame's sum. With GRAD OF_FRAMES `[G, F, 12]`: its gradient.

    The gradient of nine numbers of the rotation and three of the origin.
    """
    structure = tl.program_id(1)
    target = structure % T
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside = f < F
    mine = load_frame(ROTS, TRANS, structure * F + f, inside)
    theirs = load_frame(TARGET_ROTS, TARGET_TRANS, target * F + f, inside)
    frame_weight = tl.load(FRAME_WEIGHT + target * F + f, mask=inside, other=0.0)
    share = tl.load(SHARE + target)
    zeros = tl.zeros([BLOCK_F, BLOCK_P], tl.float32)
    total = zeros
    s0, s1, s2 = zeros, zeros, zeros
    x0, x1, x2, y0, y1, y2, z0, z1, z2 = (
        zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros
    )  # fmt: skip
    for first in range(0, P, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)
        there = p < P
        weight = tl.load(POINT_WEIGHT + target * P + p, mask=there, other=0.0)
        weight = frame_weight[:, None] * weight[None, :]
        seen = _seen(mine, load_point(POINTS, structure * P + p, there))
        known = _seen(theirs, load_point(TARGET_POINTS, target * P + p, there))
        error, g0, g1, g2 = _errors(seen, known, weight, share, most, eps)
        total += error
        if GRAD:
            s0, s1, s2 = s0 + g0, s1 + g1, s2 + g2
            x0, x1, x2 = x0 + seen[0] * g0, x1 + seen[0] * g1, x2 + seen[0] * g2
            y0, y1, y2 = y0 + seen[1] * g0, y1 + seen[1] * g1, y2 + seen[1] * g2
            z0, z1, z2 = z0 + seen[2] * g0, z1 + seen[2] * g1, z2 + seen[2] * g2
    tl.store(TOTAL + structure * F + f, tl.sum(total, 1), mask=inside)
    if GRAD:
        to = OF_FRAMES + (structure * F + f) * 12
        tl.store(to, tl.sum(x0, 1), mask=inside)
        tl.store(to + 1, tl.sum(x1, 1), mask=inside)
        tl.store(to + 2, tl.sum(x2, 1), mask=inside)
        tl.store(to + 3, tl.sum(y0, 1), mask=inside)
        tl.store(to + 4, tl.sum(y1, 1), mask=inside)
        tl.store(to + 5, tl.sum(y2, 1), mask=inside)
        tl.store(to + 6, tl.sum(z0, 1), mask=inside)
        tl.store(to + 7, tl.sum(z1, 1), mask=inside)
        tl.store(to + 8, tl.sum(z2, 1), mask=inside)
        a0, a1, a2 = tl.sum(s0, 1), tl.sum(s1, 1), tl.sum(s2, 1)
        tl.store(to + 9, -(mine[0] * a0 + mine[1] * a1 + mine[2] * a2), mask=inside)
        tl.store(to + 10, -(mine[3] * a0 + mine[4] * a1 + mine[5] * a2), mask=inside)
        tl.store(to + 11, -(mine[6] * a0 + mine[7] * a1 + mine[8] * a2), mask=inside)


@triton.jit
def frame_error_points_kernel(
    ROTS, TRANS, POINTS, TARGET_ROTS, TARGET_TRANS, TARGET_POINTS, FRAME_WEIGHT, POINT_WEIGHT,
    SHARE, OF_POINTS, F, P, T, most, eps,
    BLOCK_F: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """OF_POINTS `[G, P, 3]`: the gradient of the points."""
    structure = tl.program_id(1)
    target = structure % T
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    there = p < P
    points = load_point(POINTS, structure * P + p, there)
    known_points = load_point(TARGET_POINTS, target * P + p, there)
    point_weight = tl.load(POINT_WEIGHT + target * P + p, mask=there, other=0.0)
    share = tl.load(SHARE + target)
    zeros = tl.zeros([BLOCK_F, BLOCK_P], tl.float32)
    d0, d1, d2 = zeros, zeros, zeros
    for first in range(0, F, BLOCK_F):
        f = first + tl.arange(0, BLOCK_F)
        inside = f < F
        mine = load_frame(ROTS, TRANS, structure * F + f, inside)
        theirs = load_frame(TARGET_ROTS, TARGET_TRANS, target * F + f, inside)
        weight = tl.load(FRAME_WEIGHT + target * F + f, mask=inside, other=0.0)
        weight = weight[:, None] * point_weight[None, :]
        seen, known = _seen(mine, points), _seen(theirs, known_points)
        _, g0, g1, g2 = _errors(seen, known, weight, share, most, eps)
        d0 += mine[0][:, None] * g0 + mine[1][:, None] * g1 + mine[2][:, None] * g2
        d1 += mine[3][:, None] * g0 + mine[4][:, None] * g1 + mine[5][:, None] * g2
        d2 += mine[6][:, None] * g0 + mine[7][:, None] * g1 + mine[8][:, None] * g2
    to = OF_POINTS + (structure * P + p) * 3
    tl.store(to, tl.sum(d0, 0), mask=there)
    tl.store(to + 1, tl.sum(d1, 0), mask=there)
    tl.store(to + 2, tl.sum(d2, 0), mask=there)
